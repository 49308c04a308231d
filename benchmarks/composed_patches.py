"""Every pair and triple of edits, and all of them, made together, applied with git, and run.

    python benchmarks/composed_patches.py --triples 40

Each script of `training_scripts`, and each of `sample_workloads` that --samples names, is observed
once. Then each set of fixes is composed, in two orders; the diff is applied with `git apply` to a
fresh copy, the copy runs, and its first three losses are compared with the untouched program's
(later epochs may be shuffled in another order). A fix alone runs to the end, a set for three steps.
A set fails if a fix of it is left out though it can be made alone, an order gives another text, git
or Python refuse it, a name is not bound, or a loss is another one.
"""

from __future__ import annotations

import argparse
import builtins
import itertools
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from training_scripts import Script, scripts

from torchdoctor import schema as words
from torchdoctor.advice import catalogue
from torchdoctor.advice.wording import wording
from torchdoctor.bench.record import Recorder
from torchdoctor.edits import Edit
from torchdoctor.edits.composing import Composer
from torchdoctor.edits.diff import diff_of_files
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.schema import Location, Recording, TensorCall

FIXES: dict[str, dict[str, object]] = {
    "loader-workers": {"num_workers": 2},
    "persistent-workers": {},
    "prefetch-factor": {"prefetch_factor": 4},
    "pin-memory": {},
    "decoded-cache": {"limit_bytes": 1 << 40},
    "fused-optimizer": {"fused": True},
    "mixed-precision": {"dtype": "bfloat16"},
    "channels-last": {},
    "torch-compile": {},
    "cpu-threads": {"num_threads": 1},
    "remove-sync": {"calls": ["synchronize"]},
    "as-tensor": {},
    "tensor-on-device": {},
    "no-grad-evaluation": {},
    "tf32": {},
    "debug-off": {"off": ["anomaly"]},
    "single-precision": {},
    "set-to-none": {},
    "release-graph": {},
}
NEED_WORKERS = {"persistent-workers", "prefetch-factor"}
_LOSS = re.compile(r"loss[ =]+([\d.]+(?:e[+-]?\d+)?)")
_ROUNDING = 0.05  # of a loss: bfloat16 has 8 bits
_COMPARED = 3  # losses
_REPOSITORY = Path(__file__).parent.parent


def groups_of(recording: Recording) -> dict[str, list[Edit]]:
    """Return the edits of each fix that has some for this program."""
    known = catalogue.fixes()
    made = {
        fix: wording(known[fix], settings, recording).edits
        for fix, settings in FIXES.items()
        if fix in known
    }
    return {fix: edits for fix, edits in made.items() if edits}


def sets_of(names: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Return the sets of fixes of one size that torch takes together."""
    chosen = itertools.combinations(names, size)
    return [x for x in chosen if not NEED_WORKERS & set(x) or "loader-workers" in x]


def marked_calls(script: Script, file: str) -> list[TensorCall]:
    """Return the calls that a profiled launch would show, by the marks of a script."""
    kinds = {
        "array": ("array-copy", "tensor"),
        "moved": ("made-then-moved", "ones"),
        "wait": ("wait", "synchronize"),
    }
    return [
        TensorCall(kind=kind, name=name, sure=True, location=Location(file=file, line=line))
        for mark, (kind, name) in kinds.items()
        for line in script.marked(mark)
    ]


def observed(script: Path, arguments: Sequence[str], folder: Path) -> Recording:
    """Return what one launch under the probe shows, with marked calls added by the caller."""
    workload = words.Workload(
        command=[sys.executable, script.name, *arguments], cwd=str(script.parent),
        script=str(script),
    )  # fmt: skip
    sandbox = Sandbox.choose("auto", folder, workload)
    recorder = Recorder(workload, folder / "run", sandbox, 0, None, 300.0)
    try:
        seen = recorder.observe(None, 2.0, 20.0)
    finally:
        recorder.close()
        sandbox.close()
    environment = words.Environment(sandbox="overlay")
    return Recording(
        workload=workload, environment=environment, steps=seen.steps, processes=seen.processes
    )


def with_calls(recording: Recording, calls: list[TensorCall]) -> Recording:
    """Return the recording with calls that an analysed window would have shown."""
    main = replace(recording.main, tensor_calls=calls, analysed_steps=3)
    processes = [main if x is recording.main else x for x in recording.processes]
    return replace(recording, processes=processes)


class _EnoughError(BaseException):
    """The steps that are compared were made."""


def ran(
    script: Path, arguments: Sequence[str], log: Path, to_the_end: bool = True
) -> tuple[int, list[float], str]:
    """Run a program in a fork of this process, which has torch; return how, losses, last words."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        _run_here(script, arguments, log, to_the_end)
    _, status = os.waitpid(pid, 0)
    text = log.read_text(encoding="utf-8", errors="replace")
    losses = [float(x) for x in _LOSS.findall(text)]
    return status, losses, (text.strip().splitlines() or [""])[-1]


def _run_here(script: Path, arguments: Sequence[str], log: Path, to_the_end: bool) -> None:
    code = 1
    try:
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(script.parent)
        sys.argv = [script.name, *arguments]
        sys.path[0] = str(script.parent)
        if not to_the_end:
            builtins.print = _until_enough(builtins.print)
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except _EnoughError:
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _until_enough(show: Callable[..., None]) -> Callable[..., None]:
    """Return a print that ends the program after as many losses as are compared."""
    shown = 0

    def show_and_count(*values: object, **keywords: Any) -> None:
        nonlocal shown
        show(*values, **keywords)
        shown += sum("loss" in str(value) for value in values)
        if shown >= _COMPARED:
            raise _EnoughError

    return show_and_count


@dataclass
class Tried:
    """What became of the sets of one program."""

    name: str
    groups: list[str]
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Program:
    """One program with its recording, and the runs of its patched copies."""

    def __init__(self, name: str, recording: Recording, arguments: Sequence[str], scratch: Path):
        self.groups = groups_of(recording)
        self.tried = Tried(name, list(self.groups))
        self._recording, self._arguments, self._scratch = recording, arguments, scratch
        self._script = Path(recording.workload.script or "")
        self._composer = Composer()
        self._outcomes: dict[tuple[str, ...], str | None] = {}
        _, self._losses, said = ran(self._script, arguments, scratch / "log.txt")
        self.alone = {
            fix for fix in self.groups if self._composer.compose({fix: self.groups[fix]}).made
        }
        self.tried.counts["losses"] = len(self._losses)
        if not self._losses:
            self.tried.failures.append(f"{name}: the untouched program shows no loss: {said}")

    def try_set(self, chosen: tuple[str, ...]) -> None:
        """Compose, apply and run one set; count what came of it."""
        counts = self.tried.counts
        counts["sets"] += 1
        reason = self._why_failed(chosen)
        if reason is not None:
            counts["failed"] += 1
            self.tried.failures.append(f"{self.tried.name}: {' + '.join(chosen)}: {reason}")

    def _why_failed(self, chosen: tuple[str, ...]) -> str | None:
        wanted = {fix: self.groups[fix] for fix in chosen}
        composed = self._composer.compose(wanted)
        backwards = self._composer.compose(dict(reversed(wanted.items())))
        if composed.files != backwards.files:
            return "another order gives another text"
        if lost := [fix for fix in composed.left_out if fix in self.alone]:
            self.tried.counts["a member left out"] += 1
            return f"left out: {', '.join(lost)}"
        texts = tuple(after for _, after in composed.files.values())
        if texts not in self._outcomes:
            self._outcomes[texts] = self._why_not_run(composed.files, len(chosen) == 1)
            self.tried.counts["runs"] += 1
        return self._outcomes[texts]

    def _why_not_run(self, files: Mapping[str, tuple[str, str]], alone: bool) -> str | None:
        copy = self._scratch / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for path, (before, _) in files.items():
            copy.joinpath(Path(path).name).write_bytes(before.encode())
        diff = diff_of_files(files, self._script.parent)
        if diff is None:
            return None
        git = subprocess.run(
            ["git", "apply", "-"], input=diff.encode(), cwd=copy, capture_output=True, check=False
        )
        if git.returncode:
            return f"git: {git.stderr.decode().strip()}"
        for path, (_, after) in files.items():
            if copy.joinpath(Path(path).name).read_bytes() != after.encode():
                return "git made another text"
        target = copy / self._script.name
        status, losses, last = ran(target, self._arguments, self._scratch / "log.txt", alone)
        if status:
            return last
        compared = self._losses[:_COMPARED]
        if len(losses) < len(compared):
            return f"{len(losses)} losses, not {len(compared)}"
        for loss, wanted in zip(losses, compared, strict=False):
            if abs(loss - wanted) > _ROUNDING * max(abs(wanted), 0.1):
                return f"a loss of {loss}, not {wanted}"
        return None


def programs(chosen: slice, samples: str, scratch: Path) -> list[Callable[[], Program]]:
    """Return what makes each program ready."""

    def of_script(number: int, script: Script) -> Program:
        folder = scratch / str(number)
        path = folder / "program" / "train.py"
        path.parent.mkdir(parents=True)
        path.write_text(script.source)
        recording = with_calls(observed(path, [], folder), marked_calls(script, str(path)))
        return Program(script.name, recording, [], folder)

    def of_sample(path: Path) -> Program:
        folder = scratch / path.stem
        copy = folder / "program" / path.name
        copy.parent.mkdir(parents=True)
        copy.write_bytes(path.read_bytes())
        recording = observed(copy, [], folder)
        return Program(path.stem, recording, ["--steps", "3"], folder)

    ready: list[Callable[[], Program]] = []
    for number, script in list(enumerate(scripts()))[chosen]:
        ready.append(lambda number=number, script=script: of_script(number, script))  # type: ignore[misc]
    for path in sorted((_REPOSITORY / "sample_workloads").glob("*.py")):
        wanted = samples == "all" or path.stem in samples.split(",")
        if wanted and "--steps" in path.read_text(encoding="utf-8"):
            ready.append(lambda path=path: of_sample(path))  # type: ignore[misc]
    return ready


def main() -> int:
    """Print a line for each program as it is done, then the failures and the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scripts", default="0:30", help="which, as a slice: 0:30, 3:4")
    parser.add_argument("--samples", default="", help="sample workloads too: all, or names")
    parser.add_argument("--triples", type=int, default=10**9, help="of each program, at most")
    parser.add_argument("--pairs", type=int, default=10**9, help="of each program, at most")
    parser.add_argument("--alone", type=int, default=10**9, help="of each program, at most")
    given = parser.parse_args()
    begin, end = given.scripts.split(":")
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # what is compiled is called as it is
    import torch

    torch.set_num_threads(1)
    sums: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for make in programs(slice(int(begin), int(end)), given.samples, Path(scratch)):
            try:
                program = make()
            except Exception as error:
                print(f"not observed: {type(error).__name__}: {error}", flush=True)
                continue
            names, chance = sorted(program.groups), random.Random(0)
            for size, most in ((1, given.alone), (2, given.pairs), (3, given.triples)):
                sets = sets_of(names, size)
                for chosen in chance.sample(sets, min(most, len(sets))):
                    program.try_set(chosen)
            program.try_set(tuple(names))
            tried = program.tried
            unmade = sorted(set(program.groups) - program.alone)
            cells = [tried.name, f"{len(names)} fixes", dict(tried.counts), f"not alone: {unmade}"]
            print(*cells, sep=" | ", flush=True)
            for line in tried.failures:
                print(f"    {line}", flush=True)
            sums += tried.counts
            failures += tried.failures
    print(f"sums: {dict(sums)}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
