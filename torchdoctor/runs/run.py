"""The story of `run`: record -> diagnose -> candidates -> trials -> report."""

import contextlib
import functools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from torchdoctor.advice import catalogue
from torchdoctor.advice.candidates import candidates
from torchdoctor.advice.diagnosis import by_experiment, diagnose, overlapping_calls, too_short
from torchdoctor.bench.block_plan import TurnBlocks
from torchdoctor.bench.engine import Engine
from torchdoctor.bench.measurement import ProgramLaunches, turns_of_trials
from torchdoctor.bench.record import Recorder
from torchdoctor.launch.escaped_writes import escape_doubts
from torchdoctor.launch.kept_input import keep_stdin
from torchdoctor.launch.run_folder import gone_if_refused, new_run_folder
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.machine.environment import as_seen_by, environment
from torchdoctor.machine.load_beside import LoadBeside
from torchdoctor.observe.joined_window import JoinedWindow
from torchdoctor.observe.observation import Observation, Profiled, without_yielding
from torchdoctor.observe.shares import share_doubts, shares, with_inline_preparation
from torchdoctor.observe.window import (
    ProfilerWindow,
    Window,
    choose_joined_window,
    choose_profiler_window,
    choose_window,
)
from torchdoctor.queries.slow_reads import stays_cold
from torchdoctor.queries.stacks import share_showing
from torchdoctor.reports import remarks
from torchdoctor.reports.remarks import NO_GPU_EVENTS
from torchdoctor.reports.status import StatusFile
from torchdoctor.reports.summary import summarized
from torchdoctor.reports.verdict import trace_doubts
from torchdoctor.runs.report_assembly import RunResults, assemble, known_so_far
from torchdoctor.runs.run_settings import RunSettings
from torchdoctor.runs.trace_verdict import with_waits
from torchdoctor.schema import (
    Ending,
    Evidence,
    OtherLoad,
    ProgressEvent,
    Recording,
    Report,
    StepStatistics,
    Workload,
    as_remark,
    fact,
    secret_values,
)
from torchdoctor.schema.errors import CannotWrite, ProgramFailed
from torchdoctor.schema.record_files import without_secrets, write_record, write_recording
from torchdoctor.trials.arm_specs import ArmSpecs
from torchdoctor.trials.arms import fix_facts
from torchdoctor.trials.ceilings import ceiling_trials
from torchdoctor.trials.log import Budget
from torchdoctor.trials.numerics import trains_in_low_precision
from torchdoctor.trials.outcome import TrialResults
from torchdoctor.trials.search import SearchSettings, run_trials
from torchdoctor.trials.training_trials import try_advice

_OBSERVE_SHARE, _OBSERVE_MOST = 0.06, 0.35  # of the budget, for watching training steps
_OBSERVE_LEAST_S = 4.0
_OBSERVE_MOST_S = 15.0
_PROFILE_SHARE = 0.25  # of the budget, at most
_LEAST_PROFILE_SHARE = 0.15  # of what is left, also where trials are short of time: it says which
_LEAST_TRIALS_S = 3.0  # of trials, and what starting takes
_LEFT_FOR_TRIALS = 2.0  # times that, after profiling
_REPORT_S, _REPORT_SHARE = 1.0, 0.1  # of the budget, after the last launch: for the report

Progress = Callable[[ProgressEvent], None]


def checkup(workload: Workload, settings: RunSettings, progress: Progress) -> Report:
    """Run the whole story for one workload; return the report, also written to the run folder.

    Ctrl-C gives a report of what was measured, with `interrupted` set. Raise TorchdoctorError, one
    sentence and its exit code, where nothing could be measured.
    """
    settings.check()
    began_s = settings.began_s or time.monotonic()
    created = datetime.now(timezone.utc)
    imports_s = time.monotonic() - began_s  # where they took long, so does the report
    folder = settings.made_folder or new_run_folder(settings.output, workload.cwd, created)
    mode = "auto" if settings.sandbox else "none"
    network = settings.network
    with gone_if_refused(folder):
        chosen = Sandbox.choose(mode, folder, workload, network=network)
    with chosen as sandbox:
        machine = replace(environment(workload.python), sandbox=sandbox.mode)
        with gone_if_refused(folder):
            kept = keep_stdin(folder)
        seed = settings.seed
        timeout_s = settings.timeout_s
        forks = not (settings.cold or settings.no_fixes)  # of two launches an image saves nothing
        recorder = Recorder(workload, folder, sandbox, seed, kept.path, timeout_s, forks)
        report_s = min(_REPORT_S + imports_s, _REPORT_SHARE * settings.budget_s)
        recorder.end_by(began_s + settings.budget_s - report_s)
        with contextlib.closing(recorder), StatusFile(folder) as status:
            return _Checkup(
                settings=settings,
                tell=progress,
                began_s=began_s,
                created=created.isoformat(timespec="seconds"),
                folder=folder,
                status=status,
                sandbox=sandbox,
                recorder=recorder,
                recording=Recording(workload=workload, environment=machine, folder=str(folder)),
                doubts=[*settings.remarks, *filter(None, [workload.remark, kept.doubt])],
            ).report()


@dataclass(kw_only=True)
class _Checkup(RunResults):
    """State of one run: its clock, its folder, what was found so far."""

    tell: Progress
    began_s: float  # time.monotonic()
    folder: Path
    status: StatusFile
    sandbox: Sandbox
    recorder: Recorder
    doubts: list[Evidence] = field(default_factory=list)
    told: str = ""  # the diagnosis, once it is known

    def report(self) -> Report:
        """Go through the story; whatever interrupts it, write and return what is known."""
        try:
            observation = self._observe()
            self._diagnose()
            self._tell_diagnosis()
            if too_short(self.recording) is not None:
                self.no_trials = fact("too-few-steps")
            elif self.settings.no_fixes:
                self.no_trials = fact("no-fixes-asked-for")
            elif overlapping_calls(self.recording):
                self.no_trials = fact("calls-overlap")
            else:
                self._try_fixes(observation)
                self._try_training(observation)
        except KeyboardInterrupt:
            self.interrupted = True
            if self.recording.steps is not None and not self.diagnosis.path:
                self._share_out()  # the shares may not be there yet
                self._diagnose()
            self.doubts.append(fact("run-interrupted"))
        report = without_secrets(summarized(self._assemble()), self._secrets)
        try:
            write_record(report, self.folder / "report.json")
            self.status.ended(report)
        except CannotWrite as error:
            # What was measured is printed all the same.
            return _with_remark(replace(report, run_folder=None), _unwritten_report(error))
        return report

    @property
    def _secrets(self) -> list[str]:
        return secret_values.values(self.recording.workload.command)

    def _elapsed(self) -> float:
        return time.monotonic() - self.began_s

    def _left(self) -> float:
        """Return the seconds that launches may still take."""
        return self.recorder.left_s

    def _budget_with(self, more_s: float) -> float:
        """Return a budget that leaves trials so many seconds more.

        Of more time, shares go to observing and, where it is still to come, to profiling.
        """
        profile_share = _PROFILE_SHARE if self.recording.trace is None else 0.0
        free = 1 - _OBSERVE_MOST - profile_share
        return ((1 - _OBSERVE_MOST) * self.settings.budget_s + more_s) / free

    def _relay(self, event: ProgressEvent) -> None:
        network = self.recorder.network
        hosts = dict.fromkeys(contact.place for contact in network.sent_to) if network else {}
        now = replace(event, elapsed_s=self._elapsed(), budget_s=self.settings.budget_s)
        now = replace(now, diagnosis=self.told)
        now = replace(now, sends_to=list(hosts))
        self.status.update(now)
        self.tell(now)

    def _tell_diagnosis(self) -> None:
        """Say what slows the program as soon as it is known: fixes take minutes."""
        report = known_so_far(self.recording, self.diagnosis)
        answer = self.status.diagnosed(without_secrets(report, self._secrets))
        place = f" ({answer.location})" if answer.location else ""
        self.told = f"{answer.sentence.rstrip('.')}{place}"
        message = "The bottleneck is known, and fixes for it are looked for"
        self._relay(ProgressEvent(phase="diagnosis", message=message))

    def _observe(self) -> Observation:
        workload = self.recording.workload
        by = f"{workload.python} ({workload.python_from})" if workload.python else "its command"
        message = f"The untouched program runs, and its steps are observed; started by {by}"
        why = "Everything else is compared with it"
        self._relay(ProgressEvent(phase="observe", message=message, why=why))
        budget = self.settings.budget_s
        enough = min(max(budget * _OBSERVE_SHARE, _OBSERVE_LEAST_S), _OBSERVE_MOST_S)
        most = max(_OBSERVE_MOST * budget, enough)

        def observe(enough_s: float = enough) -> Observation:
            with self._load_beside().measuring() as held:
                joined = JoinedWindow(self._joined_window)
                observed = self.recorder.observe(
                    self.settings.step_on, enough_s, most, self._left(), joined=joined
                )
                self.profiled_within = joined.asked
            return without_yielding(observed, held.yielded)

        earlier = self.settings.earlier
        workload = self.recording.workload
        observation = earlier(workload, observe) if earlier else observe()
        self.doubts += observation.doubts
        self._take(observation)
        if not observation.interrupted and too_short(self.recording) is None:
            profiled = self._profile(observation)
            traced = self._take_traces(observation, profiled) if profiled else None
            observation = traced or self._take_slowest(observation)
        self._share_out()
        self.doubts += share_doubts(self.recording.steps, self.recording.trace)
        self.recording = replace(self.recording, network=self.recorder.network)
        try:
            workload = self.recording.workload
            shown = replace(workload, command=workload.typed)
            recording = without_secrets(replace(self.recording, workload=shown), self._secrets)
            write_recording(recording, self.folder / "recording.json")
        except CannotWrite as error:
            self.doubts.append(_unwritten_recording(error))
        if observation.interrupted:
            raise KeyboardInterrupt
        return observation

    def _take(self, observation: Observation) -> None:
        self.recording = replace(
            self.recording,
            steps=observation.steps,
            failure=observation.failure,
            processes=observation.processes,
            sensors=observation.sensors,
            environment=as_seen_by(
                observation.processes[0], self.recording.environment, observation.trainers
            ),
        )
        if calls := overlapping_calls(self.recording):
            self.doubts.append(fact("calls-overlap", calls=calls))
        machine = self.recording.environment
        world = self.recording.main.world_size or 1
        if world > observation.steps.trainers:
            trainers = observation.steps.trainers
            self.doubts.append(
                fact("processes-unseen", processes=world, told=trainers, folder=str(self.folder))
            )
        if machine.built_for and not machine.gpus:
            self.doubts.append(fact("gpu-not-seen", built_for=machine.built_for))
        if not observation.interrupted and too_short(self.recording) is None:
            self.recording = replace(self.recording, storage=self.recorder.storage(observation))

    def _profile(self, observation: Observation) -> Profiled | None:
        """Return the profiler window, where the budget allows it; its absence is a doubt."""
        if self.profiled_within:
            joined = self._attempted(self.recorder.joined_window)
            # What records kernels was never tried in a fork, as the observed launch may be.
            if joined and (joined.has_device or not self.recording.has_gpu):
                return joined
            self.profiled_within = False
        most_s = self._profile_most_s(observation.start_s)
        window = choose_profiler_window(observation.steps, observation.start_s, most_s)
        if window is None:
            self.doubts.append(
                fact("no-profiler-window", most_s=max(most_s, 0), budget_s=self.settings.budget_s)
            )
            return None
        longest = 6 * window.launch_s(observation.steps, observation.start_s) + 30
        why = "Its trace says which operators and kernels take the time"
        message = "The profiler records a few steps, in a launch of its own"
        self._relay(ProgressEvent(phase="profile", message=message, why=why))
        boundary = observation.steps_found.boundary
        cold = stays_cold(self.recording)
        forked = not self.recording.has_gpu  # what records kernels was never tried in a fork
        profile = self.recorder.profile
        return self._attempted(
            functools.partial(profile, boundary, window, longest, cold=cold, forked=forked)
        )

    def _attempted(self, profile: Callable[[], Profiled]) -> Profiled | None:
        try:
            return profile()
        except ProgramFailed as error:
            self.doubts.append(fact("profile-failed", reason=str(error)))
            return None

    def _profile_most_s(self, start_s: float) -> float:
        """Return the seconds that a profiler window may take, with the start of its launch."""
        left_s = self._left()
        if self.settings.no_fixes:
            return left_s
        trials_s = _LEFT_FOR_TRIALS * (_LEAST_TRIALS_S + start_s)
        most_s = min(left_s - trials_s, self.settings.budget_s * _PROFILE_SHARE)
        return max(most_s, _LEAST_PROFILE_SHARE * left_s)

    def _joined_window(self, steps: StepStatistics, start_s: float) -> ProfilerWindow | None:
        """Return the profiler window that the observing launch is to end with; None: none."""
        most_s = self._profile_most_s(start_s)
        budget_s = self.settings.budget_s
        window = choose_joined_window(steps, start_s, most_s, budget_s)
        if window is not None:
            why = "Its trace says which operators and kernels take the time"
            message = "The profiler records a few steps, at the end of the same launch"
            self._relay(ProgressEvent(phase="profile", message=message, why=why))
        return window

    def _take_traces(self, observation: Observation, profiled: Profiled) -> Observation:
        """Add the trace of the rank that the others wait for; return what was observed on it."""
        from torchdoctor.runs.traces import compared  # with all that reads traces

        ranks, chosen, _ = compared(profiled.traces)
        if not ranks:
            chosen = profiled.largest()
        elif chosen.rank not in (None, observation.processes[0].rank):
            observation = self.recorder.observed_on(chosen.rank)
            self._take(observation)
        trace = chosen.statistics
        # Of our own window on a machine without a GPU, "no GPU events" is no doubt.
        expected = not self.recording.environment.gpus and not trace.has_device
        self.doubts += [
            trace_doubt
            for trace_doubt in trace_doubts(trace)
            if not (expected and trace_doubt.fact in NO_GPU_EVENTS)
        ]
        processes = profiled.added_to(self.recording.processes, trace.path)
        self.recording = replace(self.recording, trace=trace, processes=processes, ranks=ranks)
        return observation

    def _take_slowest(self, lowest: Observation) -> Observation:
        """Return what was observed on the rank that waits longest for data: no trace tells more."""
        ranks = [
            process.rank
            for process in lowest.processes[: lowest.steps.trainers]
            if process.rank is not None
        ]
        if len(ranks) < 2:
            return lowest
        observed = [lowest, *map(self.recorder.observed_on, ranks[1:])]
        last = max(observed, key=lambda observation: observation.steps.data_wait_s)
        if last is not lowest:
            self._take(last)
        self.doubts.append(fact("rank-waits-longest", rank=last.processes[0].rank))
        return last

    def _share_out(self) -> None:
        """Set where the step's time goes, by all that was recorded."""
        recording = self.recording
        unseen, outside = (share_showing(recording, role) for role in ("computes", "outside"))
        device = recording.sensors if recording.has_gpu else None
        step_shares = shares(recording.steps, recording.trace, unseen, outside, device)
        self.recording = with_inline_preparation(replace(recording, shares=step_shares))

    def _diagnose(self) -> None:
        diagnosis = diagnose(self.recording, catalogue.checks(), catalogue.fixes())
        trace = self.recording.trace
        ranks = self.recording.ranks
        self.diagnosis = with_waits(diagnosis, trace, ranks) if trace else diagnosis

    def _try_fixes(self, observation: Observation) -> None:
        modules = catalogue.fixes()
        wanted = self.settings
        chosen, self.refused = candidates(
            self.recording,
            self.diagnosis,
            modules,
            fixes=wanted.fixes,
            skip=wanted.skip,
            allow_training_changes=wanted.allow_training_changes,
        )
        left_s = self._left()
        least_s = _LEAST_TRIALS_S + observation.start_s
        if left_s < least_s:
            enough_s = self._budget_with(least_s - left_s)
            self.no_trials = fact(
                "budget-too-short",
                left_s=max(left_s, 0.0),
                budget_s=wanted.budget_s,
                enough_s=round(enough_s + 1),
            )
            return
        window = choose_window(observation.steps, self._left(), self.recording.main.loaders)
        window = window.overruled(wanted.steps, wanted.warmup)
        launches, why_in_turns = self._launches(observation, window)
        beside = self._load_beside()
        cluster = wanted.cluster
        self.trials = run_trials(
            (cluster.engine if cluster else Engine)(launches, random.Random(wanted.seed)),
            ArmSpecs(modules, self.recording),
            chosen,
            {ident: fix_facts(fix, self.recording) for ident, fix in modules.items()},
            budget=Budget(self._left()),
            progress=self._relay,
            settings=SearchSettings(
                kind=cluster.search if cluster else None,
                beside=None if cluster else beside,  # nodes have a load of their own
                steps=replace(observation.steps, warmup_steps=window.warmup_steps),
                seed=wanted.seed,
                allow_training_changes=wanted.allow_training_changes,
                allow_output_changes=wanted.allow_output_changes,
                low_precision=trains_in_low_precision(self.recording),
                patch=True,
                why_in_turns=why_in_turns,
                ceilings=ceiling_trials(self.recording, self.diagnosis.bottleneck),
                growing={
                    ident: functools.partial(fix.next_settings, recording=self.recording)
                    for ident, fix in modules.items()
                    if fix.next_settings is not None
                },
            ),
        )
        self._take_ending(self.trials, beside)

    def _take_ending(self, trials: TrialResults, beside: LoadBeside) -> None:
        """Set how the trials ended, and what others held meanwhile."""
        self.interrupted = trials.interrupted
        lacked_s = trials.lacked_s
        self.ending = Ending(
            reason=trials.stopped,
            after_s=self._elapsed(),
            budget_s=self.settings.budget_s,
            needed_s=None if lacked_s is None else self._budget_with(lacked_s),
        )
        self.doubts += trials.doubts
        held = beside.on_average()
        if held is not None:
            self.other_load = OtherLoad(held=held, usable=beside.usable)

    def _load_beside(self) -> LoadBeside:
        return LoadBeside(self.recording.environment.cpus, self.folder)

    def _launches(
        self, observation: Observation, window: Window
    ) -> tuple[ProgramLaunches, Evidence | None]:
        """Return how launches of trials are made, and why they follow each other, if they do."""
        wanted = self.settings
        cold = stays_cold(self.recording)
        turns: TurnBlocks | Evidence | None = None
        if wanted.side_by_side:
            mode = self.sandbox.mode
            left_s = self._left()
            turns = turns_of_trials(
                observation, window, sandbox=mode, cold=cold, steps=wanted.steps, left_s=left_s
            )
        blocks, why = (None, turns) if isinstance(turns, Evidence) else (turns, None)
        loaders = self.recording.main.loaders
        launches = ProgramLaunches.of_trials(
            self.recorder, observation, window, blocks, loaders=loaders, cold=cold
        )
        return launches, why

    def _try_training(self, observation: Observation) -> None:
        """Advice on training, where it is wanted: last, with the time that is left."""
        if not self.settings.allow_training_changes or self.interrupted:
            return
        recorder = self.recorder
        wanted = self.settings.wanted()
        advice = try_advice(recorder, observation, wanted, self.recording, self._left, self._relay)
        self.training = advice.trials
        self.interrupted = advice.interrupted

    def _assemble(self) -> Report:
        doubts = [*self.doubts, *self.recorder.doubts, *self.sandbox.doubts]
        escaped = escape_doubts(self.recorder.escaped, self.sandbox.mode)
        if self.sandbox.mode == "none":  # as the user wants it
            doubts += escaped
        else:
            self.warnings = escaped
        on_gpu = self.recording.has_gpu or self.recording.shares.gpu is not None
        tried = self.trials.ceilings if self.trials else []
        checks = catalogue.checks()
        self.diagnosis, disagree = by_experiment(self.diagnosis, tried, checks, on_gpu)
        network = self.recorder.network
        self.recording = replace(self.recording, doubts=[*doubts, *disagree], network=network)
        self.elapsed_s = self._elapsed()
        return assemble(self)


def _unwritten_report(error: CannotWrite) -> Evidence:
    """Return why the folder holds no report."""
    if error.problem is None:
        return fact("report-in-the-way", path=error.path)
    return fact("report-unwritten", path=error.path, problem=error.problem)


def _unwritten_recording(error: CannotWrite) -> Evidence:
    """Return why the folder holds no recording."""
    if error.problem is None:
        return fact("recording-in-the-way", path=error.path)
    return fact("recording-unwritten", path=error.path, problem=error.problem)


def _with_remark(report: Report, evidence: Evidence) -> Report:
    """Return a report that is in words already with one more remark."""
    remark = replace(as_remark(evidence), sentence=remarks.sentence(evidence))
    return replace(
        report,
        remarks=[*report.remarks, remark],
        doubts=[*report.doubts, remark.sentence],
    )
