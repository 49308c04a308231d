"""The story of `gate`: both versions observed, then measured in pairs until the rule decides."""

import contextlib
import math
import random
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from torchdoctor.bench.block_plan import (
    TurnBlocks,
    choose_turns,
    takes_one_process,
    too_large,
    why_in_turns,
)
from torchdoctor.bench.engine import Engine
from torchdoctor.bench.failures import Failed
from torchdoctor.bench.measurement import Pace, ProgramLaunches
from torchdoctor.gate.answer import Basis, answer
from torchdoctor.gate.decision import FEWEST_PAIRS, blind_spot, decides, look, state, too_few_pairs
from torchdoctor.gate.figures import Measured, estimator, metrics
from torchdoctor.gate.session import GateSession, Observed, observe_both
from torchdoctor.gate.settings import GateSettings
from torchdoctor.gate.sources import changed, digests, unloaded_doubts
from torchdoctor.gate.versions import Reference, elsewhere
from torchdoctor.launch.launch_spec import UNTOUCHED, LaunchSpec
from torchdoctor.observe.window import choose_window
from torchdoctor.queries.hardware import load_of
from torchdoctor.reports.remarks import sentence
from torchdoctor.schema import (
    Environment,
    Evidence,
    Pair,
    ProgressEvent,
    Workload,
    WorkloadRecord,
    as_remark,
    fact,
    within,
)
from torchdoctor.schema.errors import Inconclusive, ProgramFailed
from torchdoctor.schema.gate import GateReport
from torchdoctor.trials.compare import p_value

NEW = LaunchSpec(name="new")  # the working tree; the reference is what it is compared with
_SHARED = 0.8  # of the time left, among the pairs that are needed
_FORGIVEN = 2  # failures of one version; a third says that it cannot be measured


class GateRun:
    """State of one gate of the working tree's program against the commit `ref`."""

    def __init__(
        self,
        workload: Workload,
        ref: str,
        settings: GateSettings,
        progress: Callable[[ProgressEvent], None],
    ) -> None:
        self._session = GateSession(workload, settings, progress)
        self._workload = workload
        self._ref = ref
        self._settings = settings
        self._remarks = [as_remark(remark) for remark in settings.remarks]
        self._why: Evidence | None = None  # it is not decided
        self._interrupted = False
        self._spent_s, self._pair_s = 0.0, 0.0  # before the first pair, and by each

    def run(self) -> GateReport:
        """Measure until decided; what was measured counts when it is interrupted."""
        with (
            contextlib.closing(Reference(self._workload, self._ref)) as reference,
            self._session as session,
        ):
            observed = observe_both(session, (self._reference_arm(reference), NEW), self._ref)
            processes = [process for version in observed.versions for process in version.processes]
            loaded = [path for process in processes for path in process.sources]
            folders = [reference.root.resolve(), reference.folder.resolve()]
            self._remarks += observed.remarks
            self._doubt(*unloaded_doubts(folders, reference.differing, loaded))
            sources = digests(loaded, folders[0])
            launches = self._launches(observed)
            chance = random.Random(self._settings.seed)
            cluster = self._settings.cluster
            engine = (cluster.engine if cluster else Engine)(launches, chance, patience=_FORGIVEN)
            kinds = [
                (version.steps, version.sensors.other_load_cpus) for version in observed.versions
            ]
            on_device = any(version.processes[0].accelerator for version in observed.versions)
            measured = Measured(how=estimator(kinds, on_device=on_device))
            machine = session.environment(observed.versions[1])
            try:
                with session.measuring(machine):
                    verdict = self._decide(engine, launches, observed, measured)
            except KeyboardInterrupt:
                self._interrupted, verdict = True, "inconclusive"
                self._why = fact("interrupted")
            except Inconclusive as error:
                verdict = "inconclusive"
                self._why = fact("because", reason=str(error))
            finally:
                engine.close()
            mixed = changed(sources, folders[0])
            if mixed is not None:
                verdict = "inconclusive"
                self._why = mixed
            self._doubt(*_failure_doubts(engine), *session.launch_doubts())
            if load := load_of([version.sensors for version in observed.versions], machine.cpus):
                self._doubt(fact("busy-while-observed", load=load))
            report = self._report(observed, measured, verdict, reference.commit)
            how = "side by side" if engine.runs_beside(*observed.arms) else "in turns"
            return session.completed(replace(report, environment=machine, measured=how))

    def _doubt(self, *doubts: Evidence) -> None:
        self._remarks += map(as_remark, doubts)

    def _reference_arm(self, reference: Reference) -> LaunchSpec:
        """Return how the reference is launched."""
        if not reference.differing:
            self._doubt(fact("no-file-differs", reference=self._ref))
        if self._workload.script is not None and reference.script is None:
            self._doubt(fact("script-outside-repository", script=self._workload.script))
        if self._session.sandbox.mode == "overlay":
            return replace(UNTOUCHED, contents=reference.contents())
        moved, doubts = elsewhere(reference)
        self._doubt(fact("reference-elsewhere", folder=str(reference.folder)), *doubts)
        return moved

    def _launches(self, observed: Observed) -> ProgramLaunches:
        """Return how both are launched: by the slower version's steps."""
        settings = self._settings
        left_s = self._session.left_s()
        slower = max(
            (version.steps for version in observed.versions), key=lambda steps: steps.mean_s
        )
        # What either version's workers hold ready is used up within the warm-up.
        loaders = [
            loader for version in observed.versions for loader in version.processes[0].loaders
        ]
        window = choose_window(slower, left_s / 2, loaders)
        window = window.overruled(settings.steps, settings.warmup)
        pace = Pace.of(*observed.versions)
        turns: TurnBlocks | None = None
        if settings.side_by_side:
            most_s = left_s / (FEWEST_PAIRS + 2)
            turns = choose_turns(slower, window, pace.start_s, most_s, settings.steps)
            if turns is None:
                why: Evidence | None = why_in_turns(slower)
            else:
                why = takes_one_process(observed.versions) or too_large(observed.versions)
            if why is not None:
                turns = None
                self._doubt(fact("versions-took-turns", why=within(why)))
        return ProgramLaunches(
            recorder=self._session.recorder, pace=pace, window=window, turns=turns
        )

    def _decide(
        self, engine: Engine, launches: ProgramLaunches, observed: Observed, measured: Measured
    ) -> str:
        """Measure pair after pair until the rule has decided or the time is up."""
        session = self._session
        tolerance = self._settings.tolerances["step_time"]
        reference, new = observed.arms
        took: list[float] = []
        self._spent_s, self._pair_s = session.spent_s(), engine.expected_s(new, reference)
        while True:
            differences = measured.differences()
            verdict = look(differences, tolerance)
            if verdict != "more":
                return verdict
            # Pairs filled their share of the time, and the first started cold: while
            # some are needed, what counts is how short one can be.
            needed = len(differences) < FEWEST_PAIRS
            shortest_s = launches.shortest_pair_s if engine.side_by_side else self._pair_s
            short_s = min([*took, shortest_s]) if needed else min(took[1:] or took)
            if short_s > session.left_s():
                break
            # The machine may have become slower than it was: still five pairs, of fewer blocks.
            # Blocks that have begun end later than that, so it is not all of their share.
            share_s = _SHARED * session.left_s() / max(FEWEST_PAIRS - len(differences), 1)
            begun = time.monotonic()
            how = "side by side" if engine.runs_beside(new, reference) else "in turns"
            session.say("measure", f"Pair {len(measured.pairs) + 1} runs both versions {how}")
            outcome = engine.pair(new, reference, most_s=share_s)
            if isinstance(outcome, Failed):
                mine = outcome.name == NEW.name
                # The working tree's own failures are the user's to see.
                is_own_failure = mine and outcome.kind in ("failed", "out-of-memory", "late")
                raise (ProgramFailed if is_own_failure else Inconclusive)(
                    f"The {'new' if mine else 'reference'} version could not be measured "
                    f"{_FORGIVEN + 1} times: {sentence(outcome.why)}"
                )
            if isinstance(outcome, Pair):
                measured.pairs.append(outcome)
            took.append(time.monotonic() - begun)
            self._pair_s = fmean(took)
        if needed:
            self._why = too_few_pairs(len(differences), self._spent_s, self._pair_s)
            return "inconclusive"
        return look(differences, tolerance, final=True)

    def _report(
        self, observed: Observed, measured: Measured, verdict: str, commit: str
    ) -> GateReport:
        settings = self._settings
        rows = metrics(measured, settings.tolerances, verdict, observed.waits, settings.told_memory)
        if verdict == "not slower" and any(row.verdict == "worse" for row in rows):
            verdict = "slower"
        name = f"{self._ref} ({commit[:10]})"
        boundary = observed.versions[1].steps.boundary
        differences = measured.differences()
        p = p_value(differences) if len(differences) > 1 else None
        tolerance = settings.tolerances["step_time"]
        # Where it is the mean step alone that is slower, more pairs would not decide.
        typical = state(verdict, rows[0].ratio, tolerance)
        basis = Basis(
            why=self._why,
            p=p,
            decides=decides(differences, tolerance, typical, self._spent_s, self._pair_s),
            typical=measured.how.by == "median",
            mean=measured.mean_ratio,
        )
        return GateReport(
            workload=WorkloadRecord(command=[]),
            environment=Environment(),
            reference=name,
            kind=boundary.program,
            unit=boundary.unit,
            verdict=verdict,
            answer=answer(rows, verdict, name, basis),
            metrics=rows,
            pairs=len(differences),
            pair_ratios=[math.exp(difference) for difference in differences],
            per="step" if measured.per_step else "sample",
            p_value=p,
            mean_ratio=basis.mean,
            blind_spot=blind_spot(rows[0].ratio),
            remarks=self._remarks,
            interrupted=self._interrupted,
        )


def _failure_doubts(engine: Engine) -> list[Evidence]:
    """Return what became of launches that failed, without ending the gate."""
    failures = engine.failures
    doubts = [fact("new-broke-down", why=within(why)) for why in failures.broke_down[NEW.name]]
    if NEW.name in failures.apart:
        why = within(failures.apart[NEW.name])
        doubts.append(fact("never-beside-each-other", why=why))
    return doubts
