"""Does a patch of a public script do what the fix did at run time?

    python benchmarks/public_patches.py FOLDER [--budget 3m] [--only dcgan] [--table rows.json]

FOLDER holds clones of public repositories (examples, nanoGPT, minGPT, ...) with the data that their
scripts read; what is not there is skipped, and the table says so. Each row runs `torchdoctor run`
with one fix alone, takes the edit from `torchdoctor patch`, tries it with `git apply` on copies of
the files that it names, and compares the fix's speed-up with the patched program's. Both were
measured against the untouched program in the same run; where the fix was not confirmed, so that
the run did not measure its patch, `torchdoctor gate --against HEAD` does, on a patched copy of the
clone. They agree where their intervals overlap. It needs a quiet machine, and prints one line of
JSON for each row.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

DIFF_NAME = "+++ b/"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One script with one fix; `folder` and `paths` (for PYTHONPATH) lie below the clones."""

    name: str
    folder: str
    command: str
    fix: str
    paths: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


_NANOGPT = (
    "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 "
    "--log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 "
    "--max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)
_DCGAN = "main.py --dataset fake --batchSize 16 --ngf 16 --ndf 16 --outf /tmp"
_IMAGENET = "main.py --dummy -a resnet18 -b 16 -j 0 --epochs 1"
_WLM = "main.py --epochs 6"
_NLP = "../examples/nlp_example.py --cpu"
_OFFLINE = {"HF_HUB_OFFLINE": "1"}
TABLE = [
    Row(name=name, folder=folder, command=command, fix=fix, **more)
    for name, folder, command, fixes, more in (
        ("mnist", "examples/mnist", "main.py", "mixed-precision channels-last cpu-threads", {}),
        ("word_language_model", "examples/word_language_model", _WLM, "mixed-precision", {}),
        ("dcgan", "examples/dcgan", _DCGAN, "mixed-precision channels-last fused-optimizer", {}),
        ("imagenet", "examples/imagenet", _IMAGENET, "channels-last mixed-precision", {}),
        ("vae", "examples/vae", "main.py --epochs 10", "loader-workers fused-optimizer", {}),
        ("nanogpt", "nanoGPT", _NANOGPT, "mixed-precision torch-compile", {}),
        (
            "mingpt_adder", "minGPT/projects/adder", "adder.py", "torch-compile mixed-precision",
            {"paths": ["minGPT"]},
        ),
        ("ignite_mnist", "ignite/examples/mnist", "mnist.py", "mixed-precision loader-workers", {}),
        (
            "lightning_autoencoder", "pytorch-lightning/examples/pytorch/basics",
            "autoencoder.py", "loader-workers fused-optimizer", {},
        ),
        (
            "accelerate_nlp", "accelerate/runs", _NLP,
            "mixed-precision fused-optimizer", {"environment": _OFFLINE},
        ),
        ("cleanrl_ppo", "cleanrl", "cleanrl/ppo.py", "fused-optimizer cpu-threads", {}),
        (
            "wgan_gp", "PyTorch-GAN/implementations/wgan_gp", "wgan_gp.py",
            "fused-optimizer mixed-precision", {},
        ),
    )
    for fix in fixes.split()
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What became of one row. `applies` and `agree`: None where there was nothing to apply."""

    name: str
    fix: str
    verdict: str = ""
    applies: bool | None = None
    fix_speedup: dict[str, float] | None = None
    patch_speedup: dict[str, float] | None = None
    measured_by: str = ""  # "run" or "gate", of the patch
    agree: bool | None = None
    said: str = ""  # why something is missing


def compared(row: Row, clones: Path, budget: str, keep: Path | None = None) -> Compared:
    """Run one row; whatever goes wrong is said in it. The run's folder is kept below `keep`."""
    folder = clones / row.folder
    script = row.command.split()[0]
    if not (folder / script).is_file():
        return Compared(name=row.name, fix=row.fix, said=f"skipped: no {row.folder}/{script}")
    with tempfile.TemporaryDirectory() as scratch:
        output = str((keep or Path(scratch)).resolve() / row.name)
        report_file = Path(output) / "report.json"
        command = [
            sys.executable, "-m", "torchdoctor.cli.front", "run", "--quiet", "--fixes", row.fix,
            "--budget", budget, "--output", output, *shlex.split(row.command),
        ]  # fmt: skip
        ran = _run(command, folder, _environment(row, clones))
        if not report_file.is_file():
            last = " ".join(ran.stderr.split())[-300:] or "nothing"
            return Compared(
                name=row.name, fix=row.fix, said=f"no report ({ran.returncode}): {last}"
            )
        report = json.loads(report_file.read_text(encoding="utf-8"))
        patch = [sys.executable, "-m", "torchdoctor.cli.front", "patch", str(report_file)]
        printed = _run([*patch, "--fixes", row.fix], folder, _environment(row, clones))
    found = judged(row, report, printed.stdout, printed.stderr)
    if not found.applies or found.patch_speedup is not None:
        return found
    speedup, said = by_gate(
        printed.stdout, _folder(report, row.fix), folder, shlex.split(row.command), budget,
        _environment(row, clones),
    )  # fmt: skip
    return replace(
        found,
        patch_speedup=speedup,
        measured_by="gate" if speedup else "",
        agree=overlap(found.fix_speedup, speedup),
        said="; ".join(x for x in (found.said, said) if x),
    )


def by_gate(
    diff: str, names_from: Path, folder: Path, command: list[str], budget: str,
    environment: dict[str, str],
) -> tuple[dict[str, float] | None, str]:  # fmt: skip
    """The patched program's speed-up by `torchdoctor gate`, in a patched copy of the repository.

    Args:
        diff: its names are relative to `names_from`.
        folder: where `command` is started.
        budget: of the gate.
        environment: of the gate and the program.

    Returns:
        Speed-up with its interval, or None and why there is none.
    """
    top = Path(_run(["git", "rev-parse", "--show-toplevel"], names_from).stdout.strip() or "/")
    if top == Path("/") or not folder.is_relative_to(top):
        return None, "no gate: the program is not started within the edited repository"
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / top.name
        shutil.copytree(top, copy, symlinks=True)
        _run(["git", "apply", "-"], copy / names_from.relative_to(top), given=diff)
        gate = [
            sys.executable, "-m", "torchdoctor.cli.front", "gate", "--quiet", "--against", "HEAD",
            "--budget", budget, "--output", f"{scratch}/out",
        ]  # fmt: skip
        ran = _run([*gate, *command], copy / folder.relative_to(top), environment)
        if not Path(scratch, "out", "gate.json").is_file():
            return None, f"no gate ({ran.returncode}): {(ran.stderr.strip() or 'nothing')[-200:]}"
        gated = json.loads(Path(scratch, "out", "gate.json").read_text(encoding="utf-8"))
    ratio = next((m["ratio"] for m in gated["metrics"] if m["name"] == "step_time"), None)
    if ratio is None:
        return None, f"the gate measured nothing: {gated['verdict']}"
    # Of times: what is a fraction of the reference's is a speed-up.
    ends = {"estimate": "estimate", "low": "high", "high": "low"}
    return {key: 1.0 / ratio[end] for key, end in ends.items()}, ""


def judged(row: Row, report: dict[str, Any], diff: str, said: str) -> Compared:
    """Read one report and try its edit.

    Args:
        row: what was run.
        report: as in report.json.
        diff: what `torchdoctor patch` printed; empty where no edit can be made.
        said: what it said beside.
    """
    recommended = report["recommendation"]
    trials = [trial for trial in report["trials"] if row.fix in trial["fixes"]]
    best = max(trials, key=lambda t: (t["speedup"] or {"estimate": 0.0})["estimate"], default=None)
    fix = recommended["speedup"] or (best["speedup"] if best else None)
    trial = recommended["patch_trial"] or {}
    reasons = [] if diff else ["no edit: " + " ".join(said.split())]
    if diff and trial.get("speedup") is None:
        reasons.append(trial.get("reason") or "the fix was not confirmed, so the patch was not run")
    return Compared(
        name=row.name,
        fix=row.fix,
        verdict=best["verdict"] if best else "refused",
        applies=applies(diff, _folder(report, row.fix)) if diff else None,
        fix_speedup=fix,
        patch_speedup=trial.get("speedup"),
        measured_by="run" if trial.get("speedup") else "",
        agree=overlap(fix, trial.get("speedup")),
        said="; ".join(reasons),
    )


def _folder(report: dict[str, Any], fix: str) -> Path:
    """The folder that the edit's names are relative to."""
    recommended = report["recommendation"]
    for one in (*recommended.get("fixes", ()), *recommended.get("also_offered", ())):
        if one["fix"] == fix and one.get("folder"):
            return Path(one["folder"])
    return Path(report["workload"]["cwd"])


def applies(diff: str, folder: Path) -> bool:
    """Whether `git apply` takes the diff, once and not twice, and the files still parse."""
    names = [line[len(DIFF_NAME) :] for line in diff.splitlines() if line.startswith(DIFF_NAME)]
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            copy = Path(scratch) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((folder / name).read_bytes())
        _run(["git", "init", "--quiet"], Path(scratch))
        once = _run(["git", "apply", "-"], Path(scratch), given=diff).returncode == 0
        twice = _run(["git", "apply", "--check", "-"], Path(scratch), given=diff).returncode == 0
        for name in names:
            try:
                compile((Path(scratch) / name).read_bytes(), name, "exec")
            except (SyntaxError, ValueError):
                return False
    return bool(names) and once and not twice


def overlap(one: dict[str, float] | None, other: dict[str, float] | None) -> bool | None:
    """Whether two intervals have a value in common; None where one was not measured."""
    if one is None or other is None:
        return None
    return one["low"] <= other["high"] and other["low"] <= one["high"]


def _environment(row: Row, clones: Path) -> dict[str, str]:
    paths = [str(clones / path) for path in row.paths] + [os.environ.get("PYTHONPATH", "")]
    python_path = os.pathsep.join(path for path in paths if path)
    return {**os.environ, **row.environment, "PYTHONPATH": python_path}


def _run(
    command: list[str], folder: Path, environment: dict[str, str] | None = None, given: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment, input=given, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def shown(interval: dict[str, float] | None) -> str:
    if interval is None:
        return "-"
    return f"{interval['estimate']:.2f}x ({interval['low']:.2f}-{interval['high']:.2f})"


def yes_or_no(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "NO"


def main() -> None:
    """Print a line for each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with the clones")
    parser.add_argument("--budget", default="3m", help="of each row")
    parser.add_argument("--only", help="dcgan or dcgan:channels-last, comma-separated")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--table", type=Path, help="a JSON list of rows in place of the own table")
    given = parser.parse_args()
    rows = TABLE
    if given.table is not None:
        rows = [Row(**row) for row in json.loads(given.table.read_text(encoding="utf-8"))]
    if given.only:
        wanted = set(given.only.split(","))
        rows = [row for row in rows if wanted & {row.name, f"{row.name}:{row.fix}"}]
    print("script | fix | verdict | applies | fix at run time | patch | by | agree | remarks")
    for row in rows:
        one = compared(row, given.folder.resolve(), given.budget, given.keep)
        cells = [
            one.name, one.fix, one.verdict or "-", yes_or_no(one.applies), shown(one.fix_speedup),
            shown(one.patch_speedup), one.measured_by or "-", yes_or_no(one.agree), one.said,
        ]  # fmt: skip
        print(" | ".join(cells), flush=True)
        print(json.dumps(asdict(one)), flush=True)


if __name__ == "__main__":
    main()
