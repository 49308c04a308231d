#!/usr/bin/env bash
# Everything worth doing on a lent GPU, in one call of under nine minutes.
#
#   bash benchmarks/gpu/run_all.sh OUT [WHEELS]
#
# OUT gets: table.md (planted against found), samples/ (one report each), nvml.json (our figures
# beside nvidia-smi's), traces/ (small traces of each illness, to become test data), headlines.json
# (claims of well-known guides beside what is measured), log.txt.
# WHEELS: a folder of wheels for a machine without a package index (see wheels.sh).
# What did not fit into the time is named at the end. Without a GPU it stops at once, unless
# SIMULATED=1 asks for a rehearsal on the simulated GPU of tests/simulated_gpu.
# SHORT=1 tries a part of each: of the samples SAMPLES, of the claims HEADLINES. It installs nothing,
# and tries no fixes.
set -uo pipefail
OUT=$(mkdir -p "${1:?name a folder for the results}" && cd "$1" && pwd)
WHEELS=${2:-}
cd "$(dirname "$0")/../.."
BEGAN=$SECONDS
LIMIT=${LIMIT_S:-520}
SKIPPED=()
exec > >(tee "$OUT/log.txt") 2>&1

left() { echo $((LIMIT - (SECONDS - BEGAN))); }

# do NAME SECONDS COMMAND...: runs it where so much time is left, else names it as skipped.
do_within() {
  local name=$1 need=$2
  shift 2
  if [ "${SHORT:-}" = 1 ]; then need=1; fi
  if [ "$(left)" -lt "$need" ]; then
    SKIPPED+=("$name (needs $need s, $(left) s left)")
    return 0
  fi
  echo "== $name"
  timeout -k 10 "$(left)" "$@" || SKIPPED+=("$name (exit $?)")
}

PYTHON=${PYTHON:-python3}
if [ "${SIMULATED:-}" = 1 ]; then
  echo "A rehearsal on a simulated GPU: its figures say nothing of a real one."
  export PYTHONPATH=$PWD/tests/simulated_gpu/everywhere:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}
fi
if ! "$PYTHON" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())'; then
  echo "No CUDA GPU with a torch that sees it: nothing to do here."
  exit 1
fi
GPU_TESTS=(-m gpu tests/fixes/test_fix_examples.py)
if [ "${SIMULATED:-}" = 1 ]; then GPU_TESTS=(tests/probe/test_fixes_on_device.py -k tf32); fi
SHORTLY=()
OPTIONS=()
if [ "${SHORT:-}" = 1 ]; then
  SHORTLY=(--launches 2 --blocks 4 --step-ms 0 --logs phases)
  OPTIONS=(--no-fixes)
fi
SAMPLES=${SAMPLES:-$(basename -s .py -a sample_workloads/*.py | grep -v '^expectations$')}

if [ "${SHORT:-}" = 1 ]; then
  BIN=$(dirname "$(command -v "$PYTHON")")
else
  echo "== install"
  "$PYTHON" -m venv --system-site-packages "$OUT/.venv" || exit 1
  INDEX=()
  if [ -n "$WHEELS" ]; then INDEX=(--no-index --find-links "$WHEELS"); fi
  "$OUT/.venv/bin/python" -m pip install --quiet "${INDEX[@]}" . || exit 1
  BIN=$OUT/.venv/bin
fi
export PATH=$BIN:$PATH

nvidia-smi 2> /dev/null | head -20
do_within "environment" 10 "$BIN/python" -m torchdoctor env
do_within "nvml against nvidia-smi" 30 "$BIN/python" benchmarks/gpu/check_nvml.py "$OUT/nvml.json"
if "$BIN/python" -c 'import pytest' 2> /dev/null; then
  do_within "GPU tests" 60 "$BIN/python" -m pytest -q -p no:cacheprovider "${GPU_TESTS[@]}"
else
  SKIPPED+=("GPU tests (no pytest here)")
fi
do_within "probe overhead" 60 "$BIN/python" benchmarks/probe_overhead.py \
  "${SHORTLY[@]:---launches=3}"
do_within "headline numbers" 150 "$BIN/python" benchmarks/headlines.py \
  --budget "${HEADLINES_BUDGET_S:-25}s" --json "$OUT/headlines.json" ${HEADLINES:+--only "$HEADLINES"}
for name in $SAMPLES; do
  budget=${BUDGET_S:-30}
  do_within "run $name" $((budget + 10)) "$BIN/python" -m torchdoctor run --quiet "${OPTIONS[@]}" \
    --budget "${budget}s" --output "$OUT/samples/$name" "sample_workloads/$name.py" > /dev/null
done
"$BIN/python" benchmarks/gpu/table.py "$OUT/samples" | tee "$OUT/table.md"
"$BIN/python" benchmarks/gpu/record_traces.py "$OUT/traces" "$OUT/samples"
rm -rf "$OUT/.venv" "$OUT"/samples/*/launches

echo "== took $((SECONDS - BEGAN)) s"
echo "== what only a real GPU can tell:"
cat << 'END'
   speed-ups of fixes that change kernels: mixed precision, TF32, channels-last, torch.compile, fused
   what the probe's CUDA events cost a step, and whether NVML's figures are those of nvidia-smi
   kernels' and operators' names, and thus tensor cores, MFU, convolutions and flash attention
   cudaMallocAsync, CUDA graphs, MIG, NVLink and NCCL, clocks that fall with heat
END
if [ ${#SKIPPED[@]} -gt 0 ]; then
  echo "== skipped or failed:"
  printf '   %s\n' "${SKIPPED[@]}"
fi
