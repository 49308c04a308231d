#!/usr/bin/env bash
# One part of a day with a GPU, in under ten minutes: bash benchmarks/gpu/day.sh PART OUT [WHEELS]
#
# PART: "start" (what is here, NVML, GPU tests, what the probe costs), "samples N" or "headlines N"
# as one argument (the N-th few of them; README.md beside this file says how many there are).
# OUT gets log.txt, table.md or *.json, and results.tar.gz with the reports and small traces.
# WHEELS: a folder of wheels for a machine without a package index (wheels.sh makes it). They are
# unpacked beside torch, not installed: the machine's python3 may itself be a virtual environment.
# PYTHON, LIMIT_S, BUDGET_S, SAMPLES and HEADLINES (names) may be set; SHORT=1 tries a little of
# each, SIMULATED=1 on the simulated GPU of tests/simulated_gpu.
set -uo pipefail
PART=${1:?say which part: start, "samples 1", "headlines 1"}
OUT=$(mkdir -p "${2:?name a folder for the results}" && cd "$2" && pwd)
WHEELS=${3:+$(cd "$3" && pwd)}
cd "$(dirname "$0")/../.." || exit 1
exec > >(tee "$OUT/log.txt") 2>&1
BEGAN=$SECONDS
LIMIT=${LIMIT_S:-540}
BUDGET=${BUDGET_S:-90}
PYTHON=${PYTHON:-python3}
SAMPLES_A_CALL=5
HEADLINES_A_CALL=5
KEPT=$(mktemp -d)
trap 'rm -rf "$KEPT"' EXIT
FAILED=()

left() { echo $((LIMIT - (SECONDS - BEGAN))); }

# attempt NAME SECONDS COMMAND...: runs it where so much time is left; what fails is named at the end.
attempt() {
  local name=$1 need=$2
  shift 2
  if [ "${SHORT:-}" = 1 ]; then need=1; fi
  if [ "$(left)" -lt "$need" ]; then
    FAILED+=("$name (needs $need s, $(left) s left)")
    return 0
  fi
  echo "== $name"
  timeout -k 10 "$(left)" "$@" || FAILED+=("$name (exit $?)")
}

# some WORDS COUNT NUMBER: the NUMBER-th COUNT of the words.
some() { echo $1 | tr ' ' '\n' | sed -n "$((($3 - 1) * $2 + 1)),$(($3 * $2))p"; }

if [ -n "$WHEELS" ]; then
  "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$KEPT/site" "$WHEELS"/*.whl || exit 1
  export PYTHONPATH=$KEPT/site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 COLUMNS=100
if [ "${SIMULATED:-}" = 1 ]; then
  echo "A rehearsal on a simulated GPU: its figures say nothing of a real one."
  export PYTHONPATH=$PWD/tests/simulated_gpu/everywhere:$PWD/tests:$PYTHONPATH
fi
if ! "$PYTHON" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())'; then
  echo "No CUDA GPU with a torch that sees it: nothing to do here."
  exit 1
fi
"$PYTHON" -m torchdoctor --version || exit 1

start() {
  local tests=(-m gpu tests) overhead=(--launches 3)
  if [ "${SIMULATED:-}" = 1 ]; then
    tests=("tests/probe/test_fixes_on_device.py::test_the_example_of_a_fix_does_what_it_says[tf32]")
  fi
  if [ "${SHORT:-}" = 1 ]; then overhead=(--launches 2 --blocks 4 --step-ms 0 --logs phases); fi
  nvidia-smi 2> /dev/null | head -20
  "$PYTHON" -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(0))'
  if unshare -Urm true 2> /dev/null; then echo "namespaces: yes"; else echo "namespaces: no"; fi
  attempt "environment" 10 "$PYTHON" -m torchdoctor env
  attempt "NVML against nvidia-smi" 30 "$PYTHON" benchmarks/gpu/check_nvml.py "$OUT/nvml.json"
  attempt "GPU tests" 120 "$PYTHON" -m pytest -q -p no:cacheprovider "${tests[@]}"
  attempt "probe overhead" 120 "$PYTHON" benchmarks/probe_overhead.py "${overhead[@]}"
}

samples() {
  local all name options=()
  all=${SAMPLES:-$(basename -s .py -a sample_workloads/*.py | grep -v '^expectations$')}
  if [ "${SHORT:-}" = 1 ]; then options=(--no-fixes); fi
  for name in $(some "$all" "$SAMPLES_A_CALL" "$1"); do
    attempt "run $name" $((BUDGET + 10)) "$PYTHON" -m torchdoctor run --quiet "${options[@]}" \
      --budget "${BUDGET}s" --output "$KEPT/samples/$name" "sample_workloads/$name.py" > /dev/null
  done
  "$PYTHON" benchmarks/gpu/table.py "$KEPT/samples" | tee "$OUT/table.md"
  "$PYTHON" benchmarks/gpu/record_traces.py "$KEPT/traces" "$KEPT/samples"
  (cd "$KEPT" && tar czf "$OUT/results.tar.gz" traces samples/*/report.json)
}

headlines() {
  local all names
  all=${HEADLINES:-$("$PYTHON" benchmarks/headlines.py --names)}
  names=$(some "$all" "$HEADLINES_A_CALL" "$1" | paste -sd ,)
  attempt "headlines $names" 60 "$PYTHON" benchmarks/headlines.py --only "$names" \
    --budget "${BUDGET}s" --json "$OUT/headlines.json"
}

$PART || FAILED+=("$PART (exit $?)")
echo "== $PART took $((SECONDS - BEGAN)) s"
if [ ${#FAILED[@]} -gt 0 ]; then
  echo "== skipped or failed:"
  printf '   %s\n' "${FAILED[@]}"
fi
