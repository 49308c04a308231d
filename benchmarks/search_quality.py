"""How much of the speed-up that there is does the search find, and how often does it find none?

    python benchmarks/search_quality.py run OUT.jsonl [--budget 3m] [--only NAME ...] [--rounds 1]
    python benchmarks/search_quality.py nulls OUT.jsonl [--budget 3m] [--least 40]
    python benchmarks/search_quality.py table OUT.jsonl

`run`, for each sample workload: `torchdoctor run` with this budget for everything; an exhaustive
search that is given ten times as much (every candidate in every setting in rounds of fresh
launches, then the best together, one after another, as long as that gains); and both results side
by side in fresh pairs, which alone say what share of the best speed-up (in logarithms) the search
reached. `nulls`: candidates that change nothing, eight at a time on each workload in turn,
until so many were searched: how many were confirmed.

Each workload appends a line of JSON to OUT; what is there already is not run again, so that it can
be stopped and gone on with at any time. The whole takes many hours, and a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from row_log import append, rows_of

from torchdoctor import catalogue
from torchdoctor.candidates import candidates
from torchdoctor.commands.arguments import parse_duration
from torchdoctor.diagnosis import diagnose
from torchdoctor.errors import TorchdoctorError
from torchdoctor.recording.environment import environment
from torchdoctor.recording.record import Recorder
from torchdoctor.recording.sandbox import Sandbox
from torchdoctor.recording.shares import shares, with_inline_preparation
from torchdoctor.recording.window import choose_window
from torchdoctor.recording.workload import workload_of
from torchdoctor.records import Candidate, Interval, Recording
from torchdoctor.trials import compare
from torchdoctor.trials.arms import Arm, Fixes, FixFacts, label
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.fix_facts import fix_facts
from torchdoctor.trials.launches import Launcher
from torchdoctor.trials.numerics import trains_in_low_precision
from torchdoctor.trials.outcome import TrialResults, training_is_the_same
from torchdoctor.trials.rounds import differences
from torchdoctor.trials.run_trials import run_trials
from torchdoctor.trials.schedule import Budget, BudgetEnded
from torchdoctor.trials.side_by_side import SideBySide
from torchdoctor.trials.switched_trials import SwitchedTrials
from torchdoctor.trials.timed_launch import TimedLaunch, turns_of_trials

SAMPLES = Path(__file__).parent.parent / "sample_workloads"
TIMES = 10  # the budget of the exhaustive search
_SIDE_BY_SIDE = 8  # pairs of both results with the untouched program
_TOGETHER = 0.3  # of the exhaustive search's time: for the best together
_NULLS = 8  # at a time
_NULL_FIX = """
def apply(torch, settings, program):
    program.at_first_batch(program.applied, lambda: None)
"""


@dataclass
class Workload:
    """One sample, observed once; searches start from what was seen."""

    recorder: Recorder
    recording: Recording
    seen: Any
    window: Any
    modules: dict[str, Any]

    @classmethod
    @contextmanager
    def observed(cls, script: Path, folder: Path, budget_s: float) -> Iterator[Workload]:
        """Observe and profile it as a run does."""
        workload = workload_of([str(script)], cwd=str(script.parent))
        sandbox = Sandbox.choose("auto", folder, workload)
        recorder = Recorder(workload, folder / "run", sandbox, 0, None, 600.0)
        try:
            seen = recorder.observe(None, 8.0, 30.0)
            profiled = recorder.profile(seen.found.boundary, 10, 300.0)
            trace = profiled.trace
            recording = Recording(
                workload=workload,
                environment=environment(None),
                steps=seen.steps,
                processes=profiled.added_to(seen.processes),
                sensors=seen.sensors,
                trace=trace,
                shares=shares(seen.steps, trace),
            )
            window = choose_window(seen.steps, budget_s, recording.main.loaders)
            found = with_inline_preparation(recording)
            yield cls(recorder, found, seen, window, dict(catalogue.fixes()))
        finally:
            recorder.close()
            sandbox.close()

    def launch(self, budget: Budget) -> TimedLaunch:
        """Fixes in, a sample out."""
        return TimedLaunch(
            self.recorder, self.seen, self.window, self.modules, budget.left, self.recording
        )

    def launcher(self, budget: Budget, seed: int) -> Launcher:
        """Rounds of launches, side by side where they can be."""
        launch, turns = self.launch(budget), turns_of_trials(self.recorder, self.seen, self.window)
        return Launcher(
            launch,
            budget,
            order=random.Random(seed),
            side_by_side=SideBySide.of(launch.both_at_once(turns)),
        )

    def candidates(self) -> list[Candidate]:
        """Those of a run."""
        diagnosis = diagnose(self.recording, catalogue.checks(), catalogue.fixes())
        return candidates(self.recording, diagnosis, catalogue.fixes())[0]

    def search(self, tried: list[Candidate], budget_s: float, seed: int) -> TrialResults:
        """These candidates alone, as a run searches."""
        budget = Budget(budget_s)
        loaders = self.recording.main.loaders
        launch, turns = self.launch(budget), turns_of_trials(self.recorder, self.seen, self.window)
        return run_trials(
            launch,
            tried,
            {ident: self._null_facts(module) for ident, module in self.modules.items()},
            budget=budget,
            steps=self.seen.steps,
            warmup_steps=self.window.warmup_steps,
            seed=seed,
            both_at_once=launch.both_at_once(turns),
            switching=SwitchedTrials.choose(
                self.recorder, self.seen, self.window, loaders, self.modules, budget.left
            ),
        )

    def _null_facts(self, module: Any) -> FixFacts:
        switches = getattr(module, "WHEN", "launch") == "between steps"
        return FixFacts(keeps_results=module.KEEPS_RESULTS, switches=switches)

    def _facts(self, ident: str) -> FixFacts:
        return fix_facts(self.modules[ident], self.recording)

    def exhaustive(self, tried: list[Candidate], budget_s: float, seed: int) -> Fixes:
        """Every candidate in rounds until the time is used, then the best of them together."""
        budget = Budget(budget_s)
        launcher = self.launcher(budget, seed)
        arms = [_arm(f"all-{n}", one, self._facts(one.fix)) for n, one in enumerate(tried)]
        try:
            while budget.left() > _TOGETHER * budget_s and any(arm.alive for arm in arms):
                launcher.round(arms, "screen")
        except BudgetEnded:
            pass
        gains = {arm.key: _gain(launcher, arm) for arm in arms}
        evidence = Evidence(launcher, self.seen.steps, trains_in_low_precision(self.recording))
        same = [a for a in arms if training_is_the_same(evidence.measured(a), False)]
        ranked = sorted((a for a in same if a.alive), key=lambda a: -gains[a.key])
        together: Fixes = []
        for arm in ranked:
            names = {fix for fix, _ in together}
            if gains[arm.key] <= 0 or names & {fix for fix, _ in arm.fixes}:
                continue
            grown = Arm(key=f"with-{arm.key}", fixes=[*together, *arm.fixes])
            before = Arm(key=f"without-{arm.key}", fixes=together)
            try:
                for _ in range(3 if together else 0):
                    launcher.round([grown, before], "stack")
            except BudgetEnded:
                break
            if not together or _gain(launcher, grown) > _gain(launcher, before):
                together = grown.fixes
        return together

    def side_by_side(self, several: dict[str, Fixes], seed: int) -> dict[str, Interval | None]:
        """Fresh rounds of these and the untouched program; speed-ups against it."""
        budget = Budget(None)
        launcher = self.launcher(budget, seed)
        arms = [Arm(key=name, fixes=fixes) for name, fixes in several.items() if fixes]
        for _ in range(_SIDE_BY_SIDE if arms else 0):
            launcher.round(arms, "confirm")
        return {arm.key: compare.interval(_differences(launcher, arm)) for arm in arms}


def _arm(key: str, one: Candidate, facts: FixFacts) -> Arm:
    fixes = [(one.fix, dict(one.settings)), *one.also.items()]
    return Arm(key=key, fixes=fixes, facts=facts, candidate=one)


def _differences(launcher: Launcher, arm: Arm) -> list[float]:
    return differences(
        launcher.rounds, arm.key, lambda timing: compare.seconds_per_sample(timing, "mean")
    )


def _gain(launcher: Launcher, arm: Arm) -> float:
    found = _differences(launcher, arm)
    return fmean(found) if found else -math.inf


def run_as_a_user(script: Path, folder: Path, budget_s: float, seed: int) -> Fixes:
    """What `torchdoctor run` recommends."""
    report = folder / f"search-{seed}.json"
    options = ["--quiet", "--budget", f"{budget_s:g}s", "--seed", str(seed), "--json", str(report)]
    command = [sys.executable, "-m", "torchdoctor.cli", "run", *options]
    command += ["--output", str(folder / f"search-{seed}"), str(script)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = json.loads(report.read_text())["recommendation"]["fixes"]
    return [(one["fix"], one["settings"]) for one in found]


def run_one(script: Path, budget_s: float, number: int) -> dict[str, Any]:
    """One workload by both ways."""
    with (
        tempfile.TemporaryDirectory() as name,
        Workload.observed(script, Path(name), budget_s) as one,
    ):
        tried = one.candidates()
        ours = run_as_a_user(script, Path(name), budget_s, number)
        best = one.exhaustive(tried, TIMES * budget_s, number)
        both = one.side_by_side({"search": ours, "exhaustive": best}, number)
    return {
        "kind": "run",
        "workload": script.stem,
        "round": number,
        "budget_s": budget_s,
        "candidates": len(tried),
        "search": label(ours),
        "exhaustive": label(best),
        **{f"{way}_speedup": asdict(x) if x else None for way, x in both.items()},
    }


def run_nulls(script: Path, budget_s: float, number: int) -> dict[str, Any]:
    """Eight candidates that change nothing; half of them can be switched."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "null_fix.py").write_text(_NULL_FIX)
        with Workload.observed(script, folder, budget_s) as one:
            tried = []
            for index in range(_NULLS):
                module = types.SimpleNamespace(
                    __file__=str(folder / "null_fix.py"),
                    KEEPS_RESULTS="exactly",
                    WHEN="between steps" if index % 2 else "launch",
                )
                one.modules[f"null-{index}"] = module
                tried.append(Candidate(fix=f"null-{index}"))
            found = one.search(tried, budget_s, number)
    fresh = [x for x in found.trials if "screened only" not in (x.reason or "")]
    confirmed = [x.fix for x in fresh if x.verdict == "faster" and " + " not in x.fix]
    return {
        "kind": "nulls",
        "workload": script.stem,
        "round": number,
        "budget_s": budget_s,
        "candidates": _NULLS,
        "confirmed": confirmed,
        "recommended": [x.fix for x in found.recommendation.fixes],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """What is there as text."""
    lines = ["| workload | search | exhaustive | reached |", "| --- | --- | --- | --- |"]
    reached = []
    for row in (row for row in rows if row["kind"] == "run"):
        ours, best = (row.get(f"{way}_speedup") for way in ("search", "exhaustive"))
        share = reached_share(ours, best)
        reached += [share] if share is not None else []
        lines.append(
            f"| {row['workload']} | {row['search'] or 'none'} {_figures(ours)} "
            f"| {row['exhaustive'] or 'none'} {_figures(best)} "
            f"| {'nothing to gain' if share is None else f'{share:.0%}'} |"
        )
    if reached:
        lines.append(
            f"\nreached on average {fmean(reached):.0%} of what the exhaustive search found, on "
            f"{sum(share >= 0.9 for share in reached)} of {len(reached)} workloads 90 % or more"
        )
    nulls = [row for row in rows if row["kind"] == "nulls"]
    if nulls:
        false = sum(len(row["confirmed"]) for row in nulls)
        total = sum(row["candidates"] for row in nulls)
        lines.append(f"\nof {total} candidates that change nothing, {false} were confirmed")
    return "\n".join(lines)


def reached_share(ours: dict[str, float] | None, best: dict[str, float] | None) -> float | None:
    """Share of the best speed-up, in logarithms; None where nobody gained anything to speak of."""
    most = max((math.log(x["estimate"]) for x in (ours, best) if x), default=0.0)
    if most < math.log(1.02):
        return None
    return max(math.log(ours["estimate"]), 0.0) / most if ours else 0.0


def _figures(found: dict[str, float] | None) -> str:
    if not found:
        return ""
    return f"{found['estimate']:.2f}x [{found['low']:.2f}, {found['high']:.2f}]"


def main() -> int:
    """Run what is lacking, and print the table of what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "nulls", "table"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--least", type=int, default=40, help="candidates that change nothing")
    options = parser.parse_args()
    budget_s = parse_duration(options.budget)
    scripts = [p for p in sorted(SAMPLES.glob("*.py")) if p.stem != "expectations"]
    scripts = [p for p in scripts if not options.only or p.stem in options.only]
    rounds = options.rounds
    if options.what == "nulls":
        rounds = math.ceil(options.least / (_NULLS * max(len(scripts), 1)))
    for number in range(1, rounds + 1):
        for script in scripts if options.what != "table" else []:
            rows = rows_of(options.out)
            key = (options.what, script.stem, number, budget_s)
            if key in [(x["kind"], x["workload"], x["round"], x["budget_s"]) for x in rows]:
                continue
            done = sum(row["candidates"] for row in rows if row["kind"] == "nulls")
            if options.what == "nulls" and done >= options.least:
                break
            try:
                row = (run_one if options.what == "run" else run_nulls)(script, budget_s, number)
            except TorchdoctorError as error:  # the next start tries it again
                print(f"{script.stem}: {error}", file=sys.stderr, flush=True)
                continue
            append(options.out, row)
            print(json.dumps(row), flush=True)
    print(table(rows_of(options.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
