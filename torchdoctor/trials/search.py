"""The executor of the search: it measures what the policy asks for, until the policy stops.

Whatever happens (budget, Ctrl-C, a program that fails), what was measured comes back as results.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from torchdoctor.bench.engine import Engine
from torchdoctor.bench.pair_times import usable
from torchdoctor.machine.load_beside import LoadBeside
from torchdoctor.schema import Candidate, ProgressEvent, StepStatistics, TriedCeiling
from torchdoctor.schema.figures import speedup
from torchdoctor.trials import beliefs, ceilings
from torchdoctor.trials.arm_specs import PATCH, ArmSpecs
from torchdoctor.trials.arms import COMPETING, Arm, FixFacts, Ladder, candidate_arms, together
from torchdoctor.trials.beliefs import Beliefs, Members, Results
from torchdoctor.trials.ceilings import CeilingTrial
from torchdoctor.trials.evidence import Evidence, Measured
from torchdoctor.trials.log import NO_TIME, SEED_LAUNCHES, Budget, BudgetEnded, Log, Stopped
from torchdoctor.trials.outcome import Allowed, Judgement, TrialResults, results_may_stay
from torchdoctor.trials.patches import Patches
from torchdoctor.trials.proof import pooled
from torchdoctor.trials.search_policy import WORTH, Action, Prices, SearchPolicy
from torchdoctor.trials.sizes import NextSettings, best_sizes, search_sizes

# Times the probability of the fix's file, if it does not treat the named bottleneck.
_BESIDE_THE_BOTTLENECK = 0.6
_LOWER_PRECISION = 0.4
_SETTING_SEEN = 0.7  # a wrong setting that was seen: it gained in 8 of 9 programs
_FURTHER_SETTING = 0.8  # times the probability: a value that the fix does not name
_UNKNOWN_CEILING = 1.5  # speed-up at most, where no share of the step is known
_PHASES = (
    "data_wait_s",
    "loader_start_s",
    "h2d_copy_s",
    "forward_s",
    "backward_s",
    "optimizer_s",
    "other_s",
    "before_forward_s",
    "gc_s",
)
_ENDED = {"time": NO_TIME, "interrupted": "interrupted", "failed": "the trials were stopped"}
PAIR, SEEDS = "confirm", "seeds"  # phases in the log
_WHY = {  # the next measurement is made, for the user who waits for it
    "pair": "It promises most for its time",
    "again": "One more pair makes its figure surer",
    "switch": "One launch that all of them share takes less time than a pair for each",
    "seeds": "Other seeds tell how far results differ by chance alone",
    "patch": "The patched source is what you will run",
}
_NO_SEEDS = (
    "The budget left no time for launches with other seeds, which would tell whether training "
    "changed."
)


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The limits of the search, and its knowledge of the program."""

    steps: StepStatistics | None = None  # observed; with the warmup of each launch of the search
    seed: int = 0  # of the policy's samples
    allow_training_changes: bool = False  # fixes of risk 3 may be recommended
    allow_output_changes: bool = False  # and those that change what a model decides
    low_precision: bool = False  # `numerics.trains_in_low_precision`
    patch: bool = False  # fixes are proven by the patch that makes them permanent
    why_in_turns: str | None = None  # half a sentence, if nobody asked for launches in turns
    ceilings: Sequence[CeilingTrial] = ()  # the most telling first
    growing: Mapping[str, NextSettings] = field(default_factory=dict)  # searched settings, by fix
    kind: "type[Search] | None" = None  # another executor than `Search`
    beside: LoadBeside | None = None  # measures what other programs hold; None: nobody does

    @property
    def allowed(self) -> Allowed:
        """Return the changes of results that may be recommended."""
        return Allowed(training=self.allow_training_changes, outputs=self.allow_output_changes)


def run_trials(
    engine: Engine,
    specs: ArmSpecs,
    candidates: Sequence[Candidate],
    facts: dict[str, FixFacts],
    *,
    budget: Budget,
    settings: SearchSettings,
    progress: Callable[[ProgressEvent], None] | None = None,
) -> TrialResults:
    """Try the candidates, the most promising first, against the untouched program."""
    log = Log(engine, budget, progress, settings.beside)
    search = (settings.kind or Search)(
        log, specs, candidate_arms(specs, candidates, facts), settings
    )
    search.run()
    return search.results()


class Search:
    """State is the log, the sets that were put together, and why the search ended."""

    def __init__(
        self, log: Log, specs: ArmSpecs, arms: list[Arm], settings: SearchSettings
    ) -> None:
        self._log = log
        self._specs = specs
        self._settings = settings
        log.best = "nothing is proven faster yet"
        self._evidence = Evidence(log, settings.steps, settings.low_precision)
        self._candidates = arms
        self._left_out: set[str] = set()  # sizes that others are better than
        self._sets: dict[Members, Arm] = {}
        self._ceilings = [(trial, trial.arm(specs)) for trial in settings.ceilings]
        self._switch_launches = 0
        self._no_seeds = False
        self._too_dear: set[Members] = set()
        self._patches = Patches(log, specs, enabled=settings.patch)
        self._stopped = "time"  # why the search ended
        self._beliefs: Beliefs | None = None  # of the last results
        self._doubts: list[str] = []

    # -- the run

    def run(self) -> None:
        """Measure until the policy stops, or something ends the search."""
        try:
            self._search_sizes()
            self._follow_policy()
        except BudgetEnded:
            self._stopped = "time"
        except KeyboardInterrupt:
            self._stopped = "interrupted"
        except Stopped as stop:
            self._stopped = "failed"
            self._doubts.append(str(stop))

    @property
    def _ended(self) -> str | None:
        """Return why the search ended before it was done; None: it was done."""
        return _ENDED.get(self._stopped)

    def _follow_policy(self) -> None:
        if not any(map(self._can_switch, self._candidates)):
            self._try_ceilings_alone()
        while True:
            action = self._next()
            if action.kind == "stop" and not self._policy().claims and self._try_ceilings_alone():
                action = self._policy().next()  # what they bound may be worth more, or less
            if action.kind == "stop":
                self._stopped = action.reason
                return
            self._measure(action)

    def _next(self) -> Action:
        """Return what is measured next."""
        return self._policy().next()

    def _can_switch(self, arm: Arm) -> bool:
        return self._log.engine.can_switch(arm.spec)

    def _measure(self, action: Action) -> None:
        again = action.kind == "pair" and action.members in self._policy().results.pairs
        self._log.why = _WHY["again" if again else action.kind]
        if action.kind == "switch":
            self._switch_launches += 1
            arms = [self._by_key[name] for name in action.arms]
            ceilings.switch_arms(self._log, arms, [arm for _, arm in self._ceilings], action.rounds)
        elif action.kind == "seeds":
            self._launch_seeds()
        else:
            self._measure_pair(action.members)
        self._name_best()

    def _measure_pair(self, members: Members) -> None:
        """Measure a pair of a set: of its patch, once the fixes were seen to work at run time."""
        arm = self._arm_of_next_pair(members)
        if arm is None:
            return
        before = len(self._evidence.paired(arm))
        is_patch = arm is not self._arm(members)
        if is_patch:
            self._log.why = _WHY["patch"]
        try:
            self._log.pair(arm, PATCH if is_patch else PAIR)
        except BudgetEnded:
            self._too_dear.add(members)
            return
        self._judge_pair(members, arm)
        if arm.alive and len(self._evidence.paired(arm)) == before:
            self._too_dear.add(members)  # the next pair would show nothing either

    def _arm_of_next_pair(self, members: Members) -> Arm | None:
        """Return what the next pair of a set is of: its patch, once its fixes were seen to work.

        The first launch of a patch costs an image of its own, which fixes at run time do not.
        None: the set is given up, as a member is made by hand beside the patch of the others.
        """
        arm = self._arm(members)
        was_seen = bool(self._evidence.paired(arm) or self._evidence.block_gains([arm]))
        patched = self._patches.arm(members, arm) if was_seen else None
        return None if members in self._patches.dropped else patched or arm

    def _judge_pair(self, members: Members, arm: Arm) -> None:
        """Take what a pair of a set says of its patch, or of a member that could not be applied."""
        if arm is not self._arm(members):
            self._judge_patch(members, arm)
        elif not arm.alive and len(members) > 1:
            self._blame(members, arm)

    def _judge_patch(self, members: Members, patched: Arm) -> None:
        """Reject a patch that does not run, changes training, or is slower than its fixes."""
        arm = self._arm(members)
        if not patched.alive:
            self._patches.reject(members, arm, "failed", patched.failed or patched.refused)
            return
        measured = self._evidence.measured(arm, patched)
        if not results_may_stay(measured, self._settings.allowed):
            opened = measured.numerics.needs_seeds
            if not opened:
                self._patches.reject(members, arm, "changes-training", measured.numerics.reason)
            return
        interval = self._policy().proof.interval(members)
        run_time = self._evidence.paired(arm)
        works_at_run_time = not run_time or median(run_time) > WORTH  # else no edit is to blame
        if works_at_run_time and interval is not None and interval.high < WORTH:
            self._patches.reject(members, arm, "slower", None)

    def _blame(self, members: Members, failed: Arm) -> None:
        """Mark the fix that could not be applied, if a single member never ran by itself."""
        untried = [arm for name in members if not (arm := self._by_key[name]).timings]
        broken = "could not be applied" in (failed.failed or "")
        if len(untried) == 1 and (failed.refused or broken):
            untried[0].refused, untried[0].failed = failed.refused, failed.failed

    def _try_ceilings_alone(self) -> bool:
        """Launch for ceilings alone if that costs a tenth of the budget; return True if it did."""
        alive = [arm for _, arm in self._ceilings if self._can_switch(arm)]
        if self._log.switched or not ceilings.affordable_ceilings(self._log, [], alive):
            return False
        self._log.why = "What the program gains without a cost bounds every fix of that cost"
        ceilings.switch_arms(self._log, [], alive, ceilings.FEWEST_ROUNDS)
        self._beliefs = None
        return True

    def _launch_seeds(self) -> None:
        """Launch the untouched program with other seeds, which tell whether training changed."""
        log = self._log
        if not log.affords(*[log.baseline] * SEED_LAUNCHES):
            self._no_seeds = True
            self._doubts.append(_NO_SEEDS)
            return
        for offset in range(1, SEED_LAUNCHES + 1):
            timing = log.launch(log.baseline, SEEDS, seed_offset=offset)
            log.seeds += [timing] if usable(timing) else []
        self._no_seeds = len(log.seeds) < SEED_LAUNCHES  # they failed: nothing else tells

    def _search_sizes(self) -> None:
        """Search the settings that are found by trying, and leave all but the best out."""
        for fix, following in self._settings.growing.items():
            first = next((arm for arm in self._candidates if arm.fixes.first == fix), None)
            if first is not None:
                search_sizes(self._log, self._specs, self._candidates, first, following)
            sizes = [arm for arm in self._candidates if arm.fixes.first == fix]
            if any(arm.timings or not arm.alive for arm in sizes):
                best = best_sizes(sizes, self._evidence.per_step)
                self._left_out |= {arm.key for arm in sizes if arm not in best}

    # -- for the policy

    def _policy(self) -> SearchPolicy:
        measured = self._results()
        if self._beliefs is None or self._beliefs.results != measured:
            tried = {x.branch: x for x in self._tried_ceilings() if x.whole}
            ladders = {arm.fixes.first: arm.facts.ladder for arm in self._candidates}
            arms = []
            for arm in self._candidates:
                of_fix = [ladders.get(fix) for fix in (arm.fixes.first, *arm.facts.includes)]
                ladder = next(filter(None, of_fix), None)
                ceiling = tried.get("".join(arm.facts.branches))
                switches = self._can_switch(arm)
                arms.append(_believed_arm(arm, switches, ceiling, self._alone(arm), ladder))
            step = _believed_step(self._settings.steps)
            self._beliefs = Beliefs(arms, step, measured, self._settings.seed)
        return SearchPolicy(self._beliefs, self._prices())

    def _alone(self, arm: Arm) -> Members:
        """Return the candidate of an arm's first fix without those that only go with it."""
        if arm.fixes.only is not None:
            return frozenset()
        first = arm.fixes.limited_to([arm.fixes.first])
        return frozenset(x.key for x in self._candidates if x.fixes == first)

    def _results(self) -> Results:
        evidence = self._evidence
        log = self._log
        measured = {frozenset([arm.key]): arm for arm in self._candidates} | self._sets
        alive = {members: arm for members, arm in measured.items() if arm.alive}
        patched = {x: evidence.paired(arm) for x, arm in self._patches.arms.items() if arm.alive}
        patched = {members: logs for members, logs in patched.items() if logs}
        pairs = {x: pooled(evidence.paired(arm), patched.get(x, ())) for x, arm in alive.items()}
        opened = {
            members
            for members, arm in alive.items()
            if arm.facts.risk < 3 and self._measured(members, arm).numerics.needs_seeds
        }
        out = {members for members, arm in measured.items() if self._is_out(members, arm)} - opened
        dropped = self._patches.dropped
        return Results(
            pairs={members: logs for members, logs in pairs.items() if logs},
            patched=patched,
            makes_patches=self._patches.enabled,
            by_hand=self._patches.by_hand,
            errors={members: evidence.pair_error(alive[members]) for members in pairs},
            blocks=evidence.block_gains([arm for arm in self._candidates if arm.alive]),
            failed=frozenset(name for members in out if len(members) == 1 for name in members)
            | self._left_out,
            failed_sets=[members for members in out | dropped if len(members) > 1],
            open_training=frozenset(opened),
            too_dear=frozenset(self._too_dear),
            switch_launches=self._switch_launches,
            seeds_done=self._no_seeds or len(log.seeds) >= SEED_LAUNCHES,
            side_by_side=log.engine.side_by_side,
        )

    def _measured(self, members: Members, arm: Arm) -> Measured:
        return self._evidence.measured(arm, self._patches.arms.get(members))

    def _is_out(self, members: Members, arm: Arm) -> bool:
        """Return whether a set failed, changed training or cannot be judged."""
        if not arm.alive or not self._evidence.can_judge(arm) or members in self._patches.dropped:
            return True
        measured = self._measured(members, arm)
        launched = bool(arm.timings) or measured.patched > 0
        return launched and not results_may_stay(measured, self._settings.allowed)

    def _prices(self) -> Prices:
        log = self._log
        engine = self._log.engine
        arms = self._by_key
        return Prices(
            budget_s=log.budget.seconds or math.inf,
            left_s=log.budget.left(),
            launch_s=log.expected_s(log.baseline),
            once_s={arm.key: engine.once_s(arm.spec) for arm in self._candidates},
            switch_s=lambda names, rounds: ceilings.switch_s(log, [arms[x] for x in names], rounds),
            patch_s=engine.image_s,
        )

    @property
    def _by_key(self) -> dict[str, Arm]:
        return {arm.key: arm for arm in self._candidates}

    def _arm(self, members: Members) -> Arm:
        if len(members) == 1:
            return self._by_key[next(iter(members))]
        if members not in self._sets:
            gains = {name: self._policy().beliefs.mean_gain(frozenset([name])) for name in members}
            ordered = [self._by_key[name] for name in sorted(gains, key=lambda name: -gains[name])]
            key = f"set-{len(self._sets)}"
            once_s = self._once_together_s(ordered)
            self._sets[members] = together(self._specs, ordered, key, once_s)
        return self._sets[members]

    def _once_together_s(self, members: Sequence[Arm]) -> float:
        """Return the one-time seconds of a set: members that change operators compile anew."""
        log, once_s = self._log, {arm.key: self._log.engine.once_s(arm.spec) for arm in members}
        dearest = max(members, key=lambda arm: once_s[arm.key])
        rest = [arm.facts for arm in members if arm is not dearest]
        longer_s = max(map(log.expected_s, members)) - log.expected_s(log.baseline)
        anew = any(facts.risk > 0 and not facts.phases for facts in rest)
        return max(0.0, longer_s, once_s[dearest.key] if anew else 0.0)

    # -- for the report

    def _judge(self) -> Judgement:
        arms = {frozenset([arm.key]): arm for arm in self._candidates} | self._sets
        measured = {members: self._measured(members, arm) for members, arm in arms.items()}
        return Judgement(
            self._evidence,
            measured,
            self._policy(),
            self._patches,
            self._settings.allowed,
        )

    def _name_best(self) -> None:
        judgement = self._judge()
        if (best := judgement.recommended()) is not None:
            figures = speedup(judgement.intervals[best])
            self._log.best = f"{judgement.measured[best].arm.label} {figures}"

    def _launch_doubts(self) -> list[str]:
        """Return what weakens all figures, by how the launches were made."""
        engine = self._log.engine
        doubts = self._log.engine.failures.doubts
        if self._settings.why_in_turns is not None and self._log.pairs:
            doubts.append(
                f"Launches followed each other, because {self._settings.why_in_turns}: that sees "
                "less in the same time than side by side."
            )
        for arm in [*self._candidates, *self._sets.values()]:
            if arm.timings:
                doubts += self._specs.unsettled(arm.fixes, engine.warmup_steps(arm.spec))
        return list(dict.fromkeys(doubts))

    def _tried_ceilings(self) -> list[TriedCeiling]:
        launched = {key for series in self._log.switched for key in series.keys}
        alike = ceilings.conditions(self._log.switched, self._settings.steps)
        known = launched if all(self._can_switch(arm) for _, arm in self._ceilings) else None
        return ceilings.tried(self._ceilings, self._evidence, known, alike)

    def results(self) -> TrialResults:
        """Return what was measured, however the search ended."""
        judgement = self._judge()
        rows = judgement.results(self._ended)
        return replace(
            rows,
            launches=self._log.engine.launches,
            doubts=[*self._doubts, *rows.doubts, *self._launch_doubts()],
            stopped=self._stopped,
            interrupted=self._stopped == "interrupted",
            ceilings=self._tried_ceilings(),
        )


def _believed_step(steps: StepStatistics | None) -> beliefs.Step:
    if steps is None or steps.mean_s <= 0:
        return beliefs.Step()
    shares = {phase: max(getattr(steps, phase), 0.0) / steps.mean_s for phase in _PHASES}
    return beliefs.Step(shares=shares, competing=COMPETING)


def _believed_arm(
    arm: Arm, switches: bool, tried: TriedCeiling | None, plain: Members, ladder: Ladder | None
) -> beliefs.Arm:
    """Return what is known of a candidate; `tried`: its branch's whole ceiling, if it was tried."""
    assert arm.candidate is not None
    facts = arm.facts
    candidate = arm.candidate
    p_helps = facts.p_helps
    if candidate.named == "setting":
        p_helps = max(p_helps, _SETTING_SEEN)
    elif not candidate.named:
        p_helps *= _LOWER_PRECISION if facts.risk >= 2 else _BESIDE_THE_BOTTLENECK
    first = arm.fixes.first
    value = arm.fixes[first].get(ladder.setting) if ladder is not None else None
    ceiling = min(candidate.ceiling or _UNKNOWN_CEILING, candidate.bound or float("inf"))
    if tried is not None:
        ceiling, counts = ceilings.bounded(ceiling, tried)
        p_helps *= counts
    return beliefs.Arm(
        name=arm.key,
        fixes=facts.includes.union(arm.fixes),
        family=facts.includes.union([first]) if value is not None else frozenset(),
        setting=float(value or 0.0),
        phases=facts.phases,
        p_helps=p_helps * (_FURTHER_SETTING if arm.further else 1.0),
        ceiling=max(ceiling, 1.0),
        risk=facts.risk,
        owed=facts.corrects or (candidate.named == "measured" and not arm.further),
        corrects=facts.corrects,
        switches=switches,
        once_s=arm.spec.setup_s,
        may_reseed=facts.how.elsewhere and facts.how.draws_random is True and facts.risk < 3,
        plain=plain,
    )
