"""The story of `gate`: launches of both versions in ABBA pairs, until the rule has decided."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from torchdoctor import __version__
from torchdoctor.errors import Inconclusive, NoStepFound, ProgramFailed, TimedOut
from torchdoctor.gate.decision import FIRST_LOOK, SECOND_LOOK, look
from torchdoctor.gate.figures import SideTimings, metrics, sentence
from torchdoctor.gate.versions import Reference
from torchdoctor.recording.environment import environment
from torchdoctor.recording.observation import Observation
from torchdoctor.recording.record import Recorder
from torchdoctor.recording.run_folder import keep_stdin, new_run_folder, writing
from torchdoctor.recording.sandbox import Sandbox
from torchdoctor.recording.window import Window, choose_window
from torchdoctor.records import Environment, ProgressEvent, Workload, WorkloadRecord
from torchdoctor.records.gate import GateReport
from torchdoctor.trials.compare import p_value, usable

_OBSERVE_S = 5.0
_MOST_FAILED = 2  # launches of one version; a third says that it cannot be measured


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """What the user asked for. `tolerances`: accepted growth by metric, as shares."""

    tolerances: dict[str, float]
    budget_s: float = 600.0
    timeout_s: float = 600.0
    output: Path | None = None
    steps: int | None = None
    warmup: int | None = None
    step_on: str | None = None
    seed: int = 0
    sandbox: bool = True


@dataclass(kw_only=True)
class Side:
    """One version: how it is launched, how its steps were found, and what was measured."""

    name: str  # "reference" or "new"
    recorder: Recorder
    seen: Observation
    timings: SideTimings = field(default_factory=SideTimings)
    failures: list[str] = field(default_factory=list)


class GateRun:
    """State of one gate against a commit.

    Args:
        workload: the program in the working tree.
        ref: the commit to compare with.
        settings: what the user asked for.
        progress: told whenever something begins.

    Raises:
        UsageError, ProgramFailed, NoStepFound, TimedOut: of the working tree's version.
        Inconclusive: the reference cannot be measured.
    """

    def __init__(
        self,
        workload: Workload,
        ref: str,
        settings: GateSettings,
        progress: Callable[[ProgressEvent], None],
    ) -> None:
        self._workload, self._ref, self._settings, self._tell = workload, ref, settings, progress
        self._began = time.monotonic()
        self._created = datetime.now(timezone.utc)
        self._order = random.Random(settings.seed)
        self._differences: list[float] = []
        self._launches = 0
        self._doubts: list[str] = []

    def run(self) -> GateReport:
        """Measure until decided; what was measured counts when it is interrupted."""
        settings = self._settings
        folder = new_run_folder(settings.output, self._workload.cwd, self._created)
        with contextlib.ExitStack() as closing:
            reference = Reference(self._workload, self._ref)
            closing.callback(reference.close)
            mode = "auto" if settings.sandbox else "none"
            sandbox = Sandbox.choose(mode, folder, self._workload)
            closing.callback(sandbox.close)
            new, old = self._recorders(folder, sandbox, reference)
            for recorder in (new, old):
                closing.callback(recorder.close)
            sides = self._observed(new, old)
            window = self._window(sides)
            verdict, interrupted = "inconclusive", False
            try:
                verdict = self._decide(sides, window)
            except KeyboardInterrupt:
                interrupted = True
                self._doubts.append("It was interrupted: only what was measured until then.")
            self._doubts += [d for x in sides for d in x.recorder.doubts]
            found = environment(self._workload.python)
            return self._report(sides, found, folder, verdict, interrupted, reference.commit)

    def _recorders(
        self, folder: Path, sandbox: Sandbox, reference: Reference
    ) -> tuple[Recorder, Recorder]:
        stdin = keep_stdin(folder)

        def recorder(name: str, workload: Workload, contents: dict[str, bytes | None]) -> Recorder:
            inner = folder / name
            with writing(folder):
                inner.mkdir()
            return Recorder(
                workload,
                inner,
                sandbox,
                self._settings.seed,
                stdin,
                self._settings.timeout_s,
                contents,
            )

        new = recorder("new", self._workload, {})
        if sandbox.mode == "overlay":
            return new, recorder("reference", self._workload, reference.contents())
        self._doubts.append(
            f"Without the overlay sandbox the reference ran in {reference.folder}, with links to "
            "your untracked files."
        )
        return new, recorder("reference", reference.elsewhere(), {})

    def _observed(self, new: Recorder, old: Recorder) -> tuple[Side, Side]:
        """(reference, new); the working tree's own failure is the user's to see."""
        step_on, most = self._settings.step_on, max(0.15 * self._settings.budget_s, _OBSERVE_S)
        self._say("observe", "the working tree")
        budget_s = self._settings.budget_s
        seen = new.observe(step_on, _OBSERVE_S, most, budget_s)
        today = Side(name="new", recorder=new, seen=seen)
        self._say("observe", self._ref)
        try:
            seen = old.observe(step_on, _OBSERVE_S, most, budget_s)
        except (ProgramFailed, NoStepFound, TimedOut) as error:
            raise Inconclusive(
                f"The program of {self._ref} cannot be measured: {str(error).splitlines()[0]}"
            ) from error
        # What is logged costs time, so both sides log the same.
        new.logs_phases = old.logs_phases = new.logs_phases or old.logs_phases
        return Side(name="reference", recorder=old, seen=seen), today

    def _window(self, sides: tuple[Side, Side]) -> Window:
        """One window for both, chosen from the slower version's steps."""
        slower = max((side.seen.steps for side in sides), key=lambda steps: steps.mean_s)
        window = choose_window(slower, self._left() / 2)
        return Window(
            warmup_steps=window.warmup_steps
            if self._settings.warmup is None
            else self._settings.warmup,
            measure_steps=self._settings.steps or window.measure_steps,
            max_window_s=3600.0 if self._settings.steps else window.max_window_s,
        )

    def _decide(self, sides: tuple[Side, Side], window: Window) -> str:
        tolerance = self._settings.tolerances["step_time"]
        by = "mean" if any(side.seen.steps.two_modes for side in sides) else "median"
        for first, second in self._pairs(sides):
            if self._launches >= 4 and not self._affords(2):
                self._doubts.append("The budget ended before the rule could decide (--budget).")
                return "inconclusive"
            self._launch(first, window)
            self._launch(second, window)
            reference, new = sides
            pair = new.timings.paired_with(reference.timings, by)
            self._differences = pair
            if len(pair) in (FIRST_LOOK, SECOND_LOOK):
                verdict = look(pair, tolerance)
                if verdict != "more":
                    return verdict
        return "inconclusive"

    def _pairs(self, sides: tuple[Side, Side]) -> Iterator[tuple[Side, Side]]:
        """ABBA, each unit with a random first side; two more than needed, for launches lost."""
        for unit in range(math.ceil((SECOND_LOOK + 2) / 2)):
            first, second = self._order.sample(sides, 2)
            yield first, second
            if 2 * unit + 1 < SECOND_LOOK + 2:
                yield second, first

    def _launch(self, side: Side, window: Window) -> None:
        self._say("measure", f"the {side.name} version, launch {self._launches + 1}")
        expected = side.seen.start_s + side.seen.steps.mean_s * (
            window.warmup_steps + window.measure_steps
        )
        timing = side.recorder.time(
            side.name,
            side.seen.found.boundary,
            window,
            [],
            4 * expected + 120.0,
            0,
            side.seen.steps.trainers,
        )
        self._launches += 1
        if timing.ended == "interrupted":
            raise KeyboardInterrupt
        side.timings.add(timing)
        if not usable(timing):
            side.failures.append(timing.reason or timing.ended)
            if len(side.failures) > _MOST_FAILED:
                raise Inconclusive(
                    f"The {side.name} version could not be measured {len(side.failures)} times: "
                    f"{side.failures[-1]}"
                )

    def _affords(self, launches: int) -> bool:
        spent = (time.monotonic() - self._began) / max(self._launches + 2, 1)
        return launches * spent <= self._left()

    def _left(self) -> float:
        return self._settings.budget_s - (time.monotonic() - self._began)

    def _say(self, phase: str, message: str) -> None:
        self._tell(
            ProgressEvent(
                phase=phase,
                message=message,
                launches_done=self._launches,
                elapsed_s=time.monotonic() - self._began,
                budget_s=self._settings.budget_s,
            )
        )

    def _report(
        self,
        sides: tuple[Side, Side],
        found: Environment,
        folder: Path,
        verdict: str,
        interrupted: bool,
        commit: str,
    ) -> GateReport:
        reference, new = sides
        by = "mean" if any(side.seen.steps.two_modes for side in sides) else "median"
        rows = metrics(
            reference.timings,
            new.timings,
            by,
            self._differences,
            self._settings.tolerances,
            verdict,
            (reference.seen.steps, new.seen.steps),
        )
        if verdict == "not slower" and any(row.verdict == "worse" for row in rows):
            verdict = "slower"
        name = f"{self._ref} ({commit[:10]})"
        return GateReport(
            torchdoctor_version=__version__,
            created=self._created.isoformat(timespec="seconds"),
            workload=WorkloadRecord(command=self._workload.command, cwd=self._workload.cwd),
            environment=found,
            reference=name,
            verdict=verdict,
            sentence=sentence(rows, verdict, name, self._doubts),
            metrics=rows,
            pairs=len(self._differences),
            per="step" if new.timings.per_step or reference.timings.per_step else "sample",
            p_value=p_value(self._differences) if len(self._differences) > 1 else None,
            doubts=list(dict.fromkeys(self._doubts)),
            interrupted=interrupted,
            run_folder=str(folder),
        )
