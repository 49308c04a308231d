"""The story of `gate`: both versions observed, then measured in pairs until the rule decides."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean

from torchdoctor import __version__
from torchdoctor.facts.other_load import load_of
from torchdoctor.gate.changed_meanwhile import SourcesAtStart
from torchdoctor.gate.decision import FEWEST_PAIRS, blind_spot, look, state
from torchdoctor.gate.elsewhere import elsewhere
from torchdoctor.gate.figures import metrics
from torchdoctor.gate.launches import PairLauncher, Side
from torchdoctor.gate.more_time import decides, too_few_pairs
from torchdoctor.gate.observing import Observed, observe_both
from torchdoctor.gate.pairs import Estimator, estimator
from torchdoctor.gate.sentence import Basis, sentence
from torchdoctor.gate.settings import GateSettings
from torchdoctor.gate.surroundings import environment_of, launch_doubts
from torchdoctor.gate.unloaded import unloaded_doubts
from torchdoctor.gate.versions import Reference
from torchdoctor.launch.run_folder import keep_stdin, new_run_folder, writing
from torchdoctor.launch.sandbox import Contents, Sandbox
from torchdoctor.observe.window import Window, choose_window
from torchdoctor.pairs.record import Recorder
from torchdoctor.pairs.turn_blocks import choose_turns, too_large, why_in_turns
from torchdoctor.trials.compare import p_value
from torchdoctor.words import Environment, ProgressEvent, Workload, WorkloadRecord
from torchdoctor.words.errors import Inconclusive
from torchdoctor.words.gate import GateReport

_SHARED = 0.8  # of the time left, among the pairs that are needed


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
        self._doubts: list[str] = []
        self._why = ""  # it is not decided
        self._spent_s, self._pair_s = 0.0, 0.0  # before the first pair, and by each

    def run(self) -> GateReport:
        """Measure until decided; what was measured counts when it is interrupted."""
        settings = self._settings
        with contextlib.ExitStack() as closing:
            reference = Reference(self._workload, self._ref)
            closing.callback(reference.close)
            folder = new_run_folder(settings.output, self._workload.cwd, self._created)
            mode = "auto" if settings.sandbox else "none"
            sandbox = Sandbox.choose(mode, folder, self._workload)
            closing.callback(sandbox.close)
            new, old = self._recorders(folder, sandbox, reference)
            for recorder in (new, old):
                closing.callback(recorder.close)
            seen = observe_both(new, old, self._ref, settings, self._say)
            self._doubts += [*seen.doubts, *self._unloaded(reference, seen.sides)]
            loaded = [x for one in seen.sides[1].seen.processes for x in one.sources]
            sources = SourcesAtStart(loaded, reference.root.resolve())
            launcher = self._launcher(seen.sides)
            how = estimator([(x.seen.steps, x.seen.sensors.other_load_cpus) for x in seen.sides])
            verdict, interrupted = "inconclusive", False
            try:
                verdict = self._decide(launcher, how)
            except KeyboardInterrupt:
                interrupted = True
                self._why = "It was interrupted: only what was measured until then."
            except Inconclusive as error:
                self._why = str(error)
            if changed := sources.changed():
                verdict, self._why = "inconclusive", changed
            self._doubts += [*launcher.doubts, *launch_doubts((new, old), sandbox)]
            found = environment_of(self._workload, seen.sides[1].seen, sandbox)
            if load := load_of([side.seen.sensors for side in seen.sides], found.cpus):
                self._doubts.append(
                    f"Other programs kept {load} busy while the versions were observed: on a quiet "
                    "machine the same time would show smaller differences."
                )
            report = self._report(seen, launcher, how, verdict, reference.commit)
            return replace(
                report, environment=found, interrupted=interrupted, run_folder=str(folder)
            )

    def _recorders(
        self, folder: Path, sandbox: Sandbox, reference: Reference
    ) -> tuple[Recorder, Recorder]:
        """Of the working tree, and of the reference."""
        stdin = keep_stdin(folder)

        def recorder(name: str, workload: Workload, contents: Contents) -> Recorder:
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
        if not reference.differing:
            self._doubts.append(
                f"No tracked file differs between {self._ref} and the working tree: both sides are "
                "the same program."
            )
        if reference.misses_script:
            self._doubts.append(
                f"{self._workload.script} lies outside the repository: both sides run the same "
                "file."
            )
        if sandbox.mode == "overlay":
            return new, recorder("reference", self._workload, reference.contents())
        self._doubts.append(
            f"Without the overlay sandbox the reference ran in {reference.folder}, with links to "
            "your untracked files."
        )
        moved = elsewhere(reference)
        self._doubts += moved.doubts
        old = recorder("reference", moved.workload, {})
        old.variables = moved.variables
        return new, old

    def _unloaded(self, reference: Reference, sides: tuple[Side, Side]) -> list[str]:
        """Changed files whose change is on neither side."""
        loaded = [path for x in sides for one in x.seen.processes for path in one.sources]
        folders = [reference.root.resolve(), reference.folder.resolve()]
        return unloaded_doubts(folders, reference.differing, loaded)

    def _window(self, sides: tuple[Side, Side]) -> Window:
        """One window for both: the slower version's steps, and what either's workers hold ready."""
        slower = max((side.seen.steps for side in sides), key=lambda steps: steps.mean_s)
        loaders = [loader for side in sides for loader in side.seen.processes[0].loaders]
        window = choose_window(slower, self._left() / 2, loaders)
        return window.overruled(self._settings.steps, self._settings.warmup)

    def _launcher(self, sides: tuple[Side, Side]) -> PairLauncher:
        window, turns, why = self._window(sides), None, None
        if self._settings.side_by_side:
            slower = max((side.seen.steps for side in sides), key=lambda steps: steps.mean_s)
            start_s = max(side.seen.start_s for side in sides)
            most_s = self._left() / (FEWEST_PAIRS + 2)
            turns = choose_turns(slower, window, start_s, most_s, self._settings.steps)
            if turns is None:
                why = why_in_turns(slower)
            else:
                why = too_large([side.seen for side in sides])
        if why is not None:
            turns = None
            self._doubts.append(
                f"The launches took turns, because {why}: that sees less in the same time."
            )
        return PairLauncher(sides, window, turns, self._order, lambda x: self._say("measure", x))

    def _decide(self, launcher: PairLauncher, how: Estimator) -> str:
        """Pair after pair until the rule has decided or the time is up."""
        tolerance = self._settings.tolerances["step_time"]
        took: list[float] = []
        self._spent_s = time.monotonic() - self._began
        self._pair_s = launcher.pair_s
        while True:
            found = launcher.pairs.differences(how)
            verdict = look(found, tolerance)
            if verdict != "more":
                return verdict
            # Pairs filled their share of the time, and the first started cold: while
            # some are needed, what counts is how short one can be.
            needed = len(found) < FEWEST_PAIRS
            short_s = min([*took, launcher.shortest_pair_s]) if needed else min(took[1:] or took)
            if short_s > self._left():
                break
            # The machine may have become slower than it was: still five pairs, of fewer blocks.
            # Blocks that have begun end later than that, so it is not all of their share.
            share_s = _SHARED * self._left() / max(FEWEST_PAIRS - len(found), 1)
            begun = time.monotonic()
            launcher.measure(begun + share_s)
            took.append(time.monotonic() - begun)
            self._pair_s = fmean(took)
        if len(found) < FEWEST_PAIRS:
            self._why = too_few_pairs(len(found), self._spent_s, self._pair_s)
            return "inconclusive"
        return look(found, tolerance, final=True)

    def _left(self) -> float:
        return self._settings.budget_s - (time.monotonic() - self._began)

    def _say(self, phase: str, message: str) -> None:
        self._tell(
            ProgressEvent(
                phase=phase,
                message=message,
                elapsed_s=time.monotonic() - self._began,
                budget_s=self._settings.budget_s,
            )
        )

    def _report(
        self,
        seen: Observed,
        launcher: PairLauncher,
        how: Estimator,
        verdict: str,
        commit: str,
    ) -> GateReport:
        pairs = launcher.pairs
        rows = metrics(pairs, how, self._settings.tolerances, verdict, seen.waits)
        if verdict == "not slower" and any(row.verdict == "worse" for row in rows):
            verdict = "slower"
        name, found = f"{self._ref} ({commit[:10]})", pairs.differences(how)
        p = p_value(found) if len(found) > 1 else None
        tolerance = self._settings.tolerances["step_time"]
        # Where it is the mean step alone that is slower, more pairs would not decide.
        typical = state(verdict, rows[0].ratio, tolerance)
        basis = Basis(
            why=self._why,
            p=p,
            decides=decides(found, tolerance, typical, self._spent_s, self._pair_s),
            typical=how.by == "median",
            mean=pairs.mean_ratio(how),
        )
        return GateReport(
            torchdoctor_version=__version__,
            created=self._created.isoformat(timespec="seconds"),
            workload=WorkloadRecord(command=self._workload.command, cwd=self._workload.cwd),
            environment=Environment(),
            reference=name,
            verdict=verdict,
            sentence=sentence(rows, verdict, name, basis),
            metrics=rows,
            pairs=len(found),
            per="step" if pairs.per_step else "sample",
            p_value=p,
            mean_ratio=basis.mean,
            blind_spot=blind_spot(found),
            measured="side by side" if launcher.turns is not None else "in turns",
            doubts=list(dict.fromkeys(self._doubts)),
        )
