"""The executor of the search: it measures what the policy asks for, until the policy stops.

In this order:

1. settings that are found by trying (how large a batch may be) are searched, and all but the best
   sizes are left out;
2. again and again, the log is read (`_results`), the policy decides by it, and what it asks for is
   measured: a pair of a set, one launch in which arms take turns, or launches with other seeds;
3. `results` makes the rows of the report from the log.

A set is measured with its fixes applied at run time first, and as a patch of the source after that.
Whatever happens (budget, Ctrl-C, a program that fails), what was measured comes back as results.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from torchdoctor.bench.engine import Engine
from torchdoctor.bench.failures import NOT_APPLIED
from torchdoctor.bench.pair_times import usable
from torchdoctor.machine.load_beside import LoadBeside
from torchdoctor.schema import (
    Candidate,
    ProgressEvent,
    StepStatistics,
    TriedCeiling,
    each_once,
    fact,
    within,
)
from torchdoctor.schema import Evidence as Fact
from torchdoctor.schema.figures import speedup
from torchdoctor.trials import ceilings
from torchdoctor.trials.arm_specs import PATCH, ArmSpecs
from torchdoctor.trials.arms import Arm, FixFacts, candidate_arms, together
from torchdoctor.trials.beliefs import Beliefs, Members, Results
from torchdoctor.trials.ceilings import CeilingTrial
from torchdoctor.trials.evidence import Evidence, Measured
from torchdoctor.trials.log import NO_TIME, SEED_LAUNCHES, Budget, BudgetEnded, Log, Stopped
from torchdoctor.trials.measurement_options import Action
from torchdoctor.trials.outcome import Allowed, Judgement, TrialResults, results_may_stay
from torchdoctor.trials.patches import Patches
from torchdoctor.trials.prices import Prices
from torchdoctor.trials.priors import prior_arms, prior_step
from torchdoctor.trials.proof import pooled
from torchdoctor.trials.search_policy import SearchPolicy
from torchdoctor.trials.sizes import NextSettings, best_sizes, search_sizes
from torchdoctor.trials.thresholds import WORTH

# Phases in the log.
PAIR = "confirm"
SEEDS = "seeds"
# Why rows have no measurement, by why the search ended; none, where the policy had decided.
_WHY_ENDED = {
    "time": NO_TIME,
    "interrupted": fact("interrupted"),
    "failed": fact("search-stopped"),
}
_WHY = {  # the next measurement is made, for the user who waits for it
    "pair": "It promises most for its time",
    "again": "One more pair makes its figure surer",
    "switch": "One launch that all of them share takes less time than a pair for each",
    "seeds": "Other seeds tell how far results differ by chance alone",
    "patch": "The patched source is what you will run",
    "ceilings": "What the program gains without a cost bounds every fix of that cost",
}


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The limits of the search, and its knowledge of the program."""

    steps: StepStatistics | None = None  # observed; with the warmup of each launch of the search
    seed: int = 0  # of the policy's samples
    allow_training_changes: bool = False  # fixes of risk 3 may be recommended
    allow_output_changes: bool = False  # and those that change what a model decides
    low_precision: bool = False  # `numerics.trains_in_low_precision`
    patch: bool = False  # fixes are proven by the patch that makes them permanent
    why_in_turns: Fact | None = None  # if nobody asked for launches in turns
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
    arms = candidate_arms(specs, candidates, facts)
    kind = settings.kind or Search
    search = kind(log, specs, arms, settings)
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
        self._sets: dict[Members, Arm] = {}  # of several members, by them
        self._ceilings = [(trial, trial.arm(specs)) for trial in settings.ceilings]
        self._switch_launches = 0
        self._no_seeds = False  # launches with other seeds did not fit, or failed
        self._too_dear: set[Members] = set()
        self._patches = Patches(log, specs, enabled=settings.patch)
        self._stopped = "time"  # why the search ended: as `TrialResults.stopped`
        self._beliefs: Beliefs | None = None  # of the last results
        self._doubts: list[Fact] = []

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
            self._doubts.append(stop.why)

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

    def _follow_policy(self) -> None:
        if not any(map(self._can_switch, self._candidates)):
            self._try_ceilings_alone()  # else they take turns with the candidates
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

    # -- measurements

    def _measure(self, action: Action) -> None:
        is_again = action.kind == "pair" and action.members in self._policy().results.pairs
        self._log.why = _WHY["again" if is_again else action.kind]
        if action.kind == "switch":
            self._switch_launches += 1
            arms = [self._by_key[name] for name in action.arms]
            ceiling_arms = [arm for _, arm in self._ceilings]
            ceilings.switch_arms(self._log, arms, ceiling_arms, action.rounds)
        elif action.kind == "seeds":
            self._launch_seeds()
        else:
            self._measure_pair(action.members)
        self._name_best()

    def _try_ceilings_alone(self) -> bool:
        """Launch for ceilings alone if that costs a tenth of the budget; return True if it did."""
        alive = [arm for _, arm in self._ceilings if self._can_switch(arm)]
        if self._log.switched or not ceilings.affordable_ceilings(self._log, [], alive):
            return False
        self._log.why = _WHY["ceilings"]
        ceilings.switch_arms(self._log, [], alive, ceilings.FEWEST_ROUNDS)
        self._beliefs = None  # ceilings are no results, which the beliefs would follow
        return True

    def _launch_seeds(self) -> None:
        """Launch the untouched program with other seeds, which tell whether training changed."""
        log = self._log
        if not log.affords(*[log.baseline] * SEED_LAUNCHES):
            self._no_seeds = True
            self._doubts.append(fact("no-other-seeds"))
            return
        for offset in range(1, SEED_LAUNCHES + 1):
            timing = log.launch(log.baseline, SEEDS, seed_offset=offset)
            if usable(timing):
                log.seeds.append(timing)
        self._no_seeds = len(log.seeds) < SEED_LAUNCHES  # they failed: nothing else tells

    def _measure_pair(self, members: Members) -> None:
        """Measure a pair of a set, which is too dear from now on if that did not come about."""
        arm = self._arm_of_next_pair(members)
        if arm is None:
            return
        is_patch = arm is not self._arm(members)
        if is_patch:
            self._log.why = _WHY["patch"]
        pairs_before = len(self._evidence.paired(arm))
        try:
            self._log.pair(arm, PATCH if is_patch else PAIR)
        except BudgetEnded:
            self._too_dear.add(members)
            return
        self._judge_pair(members, arm)
        if arm.alive and len(self._evidence.paired(arm)) == pairs_before:
            self._too_dear.add(members)  # the next pair would show nothing either

    def _arm_of_next_pair(self, members: Members) -> Arm | None:
        """Return what the next pair of a set is of: its patch, once its fixes were seen to work.

        The first launch of a patch costs an image of its own, which fixes at run time do not.
        None: the set is given up, as a member is made by hand beside the patch of the others.
        """
        arm = self._arm(members)
        was_seen = bool(self._evidence.paired(arm) or self._evidence.block_gains([arm]))
        patched = self._patches.arm(members, arm) if was_seen else None
        if members in self._patches.dropped:  # also by the attempt to make its patch just now
            return None
        return patched or arm

    def _judge_pair(self, members: Members, arm: Arm) -> None:
        """Take what a pair of a set says of its patch, or of a member that could not be applied."""
        if arm is not self._arm(members):
            self._judge_patch(members, arm)
        elif not arm.alive and len(members) > 1:
            self._blame(members, arm)

    def _judge_patch(self, members: Members, patched: Arm) -> None:
        """Reject a patch that fails, changes training, or gains nothing where its fixes do."""
        arm = self._arm(members)
        if not patched.alive:
            self._patches.reject(members, arm, "failed", patched.failed or patched.refused)
            return
        measured = self._evidence.measured(arm, patched)
        if not results_may_stay(measured, self._settings.allowed):
            if not measured.numerics.needs_seeds:  # else that is open
                self._patches.reject(members, arm, "changes-training", measured.numerics.why)
            return
        run_time = self._evidence.paired(arm)
        if run_time and median(run_time) <= WORTH:
            return  # the fixes gain as little: no edit is to blame
        interval = self._policy().proof.interval(members)
        if interval is not None and interval.high < WORTH:
            self._patches.reject(members, arm, "slower", None)

    def _blame(self, members: Members, failed: Arm) -> None:
        """Mark the fix that could not be applied, if a single member never ran by itself."""
        untried = [self._by_key[name] for name in members if not self._by_key[name].timings]
        why = failed.failed
        is_of_a_fix = failed.refused or (why is not None and why.fact in NOT_APPLIED)
        if len(untried) == 1 and is_of_a_fix:
            [suspect] = untried
            suspect.refused = failed.refused
            suspect.failed = failed.failed

    # -- for the policy

    def _policy(self) -> SearchPolicy:
        """Return the policy by what is known now: one that was asked earlier does not learn."""
        results = self._results()
        if self._beliefs is None or self._beliefs.results != results:
            arms = prior_arms(self._candidates, self._tried_ceilings(), self._can_switch)
            step = prior_step(self._settings.steps)
            self._beliefs = Beliefs(arms, step, results, self._settings.seed)
        return SearchPolicy(self._beliefs, self._prices())

    def _results(self) -> Results:
        """Return what the log shows of each set."""
        evidence = self._evidence
        log = self._log
        arms = self._arms_by_set
        alive = {members: arm for members, arm in arms.items() if arm.alive}
        patched = self._patched_gains()
        gains = {
            members: pooled(evidence.paired(arm), patched.get(members, ()))
            for members, arm in alive.items()
        }
        is_open = {members for members, arm in alive.items() if self._only_seeds_tell(members, arm)}
        is_out = {members for members, arm in arms.items() if self._is_out(members, arm)} - is_open
        failed = {name for members in is_out if len(members) == 1 for name in members}
        given_up = is_out | self._patches.dropped
        return Results(
            pairs={members: logs for members, logs in gains.items() if logs},
            patched=patched,
            makes_patches=self._patches.enabled,
            by_hand=self._patches.by_hand,
            errors={members: evidence.pair_error(arm) for members, arm in alive.items()},
            blocks=evidence.block_gains([arm for arm in self._candidates if arm.alive]),
            failed=frozenset(failed | self._left_out),
            failed_sets=[members for members in given_up if len(members) > 1],
            open_training=frozenset(is_open),
            too_dear=frozenset(self._too_dear),
            switch_launches=self._switch_launches,
            seeds_done=self._no_seeds or len(log.seeds) >= SEED_LAUNCHES,
            side_by_side=log.engine.side_by_side,
        )

    def _patched_gains(self) -> dict[Members, list[float]]:
        """Return the log speed-ups of the pairs of patches, by their sets."""
        alive = {members: arm for members, arm in self._patches.arms.items() if arm.alive}
        gains = {members: self._evidence.paired(arm) for members, arm in alive.items()}
        return {members: logs for members, logs in gains.items() if logs}

    def _only_seeds_tell(self, members: Members, arm: Arm) -> bool:
        """Return whether only launches with other seeds tell if a set changed training."""
        return arm.facts.risk < 3 and self._measured(members, arm).numerics.needs_seeds

    def _is_out(self, members: Members, arm: Arm) -> bool:
        """Return whether a set failed, changed training or cannot be judged."""
        if not arm.alive or not self._evidence.can_judge(arm) or members in self._patches.dropped:
            return True
        measured = self._measured(members, arm)
        was_launched = bool(arm.timings) or measured.patched > 0
        return was_launched and not results_may_stay(measured, self._settings.allowed)

    def _measured(self, members: Members, arm: Arm) -> Measured:
        return self._evidence.measured(arm, self._patches.arms.get(members))

    def _prices(self) -> Prices:
        log = self._log
        engine = log.engine
        by_key = self._by_key

        def switch_s(names: Sequence[str], rounds: int) -> float:
            return ceilings.switch_s(log, [by_key[name] for name in names], rounds)

        return Prices(
            budget_s=log.budget.seconds or math.inf,
            left_s=log.budget.left(),
            launch_s=log.expected_s(log.baseline),
            once_s={arm.key: engine.once_s(arm.spec) for arm in self._candidates},
            switch_s=switch_s,
            patch_s=engine.image_s,
        )

    # -- arms of sets

    @property
    def _by_key(self) -> dict[str, Arm]:
        return {arm.key: arm for arm in self._candidates}

    @property
    def _arms_by_set(self) -> dict[Members, Arm]:
        """Return the arms of all sets that there are so far: each candidate, and those measured."""
        return {frozenset([arm.key]): arm for arm in self._candidates} | self._sets

    def _arm(self, members: Members) -> Arm:
        """Return the arm of a set at run time, put together at the first call."""
        if len(members) == 1:
            [name] = members
            return self._by_key[name]
        if members not in self._sets:
            # What gains most comes first: of fixes that two members have, its settings count.
            gains = {name: self._policy().beliefs.mean_gain(frozenset([name])) for name in members}
            ordered = [self._by_key[name] for name in sorted(gains, key=lambda name: -gains[name])]
            key = f"set-{len(self._sets)}"
            once_s = self._once_together_s(ordered)
            self._sets[members] = together(self._specs, ordered, key, once_s)
        return self._sets[members]

    def _once_together_s(self, members: Sequence[Arm]) -> float:
        """Return the one-time seconds of a set: members that change operators compile anew."""
        log = self._log
        once_s = {arm.key: log.engine.once_s(arm.spec) for arm in members}
        dearest = max(members, key=lambda arm: once_s[arm.key])
        less_dear = [arm.facts for arm in members if arm is not dearest]
        compiles_anew = any(facts.risk > 0 and not facts.phases for facts in less_dear)
        longer_s = max(map(log.expected_s, members)) - log.expected_s(log.baseline)
        return max(0.0, longer_s, once_s[dearest.key] if compiles_anew else 0.0)

    # -- for the report

    def results(self) -> TrialResults:
        """Return what was measured, however the search ended."""
        rows = self._judge().results(_WHY_ENDED.get(self._stopped))
        return replace(
            rows,
            launches=self._log.engine.launches,
            doubts=[*self._doubts, *rows.doubts, *self._launch_doubts()],
            stopped=self._stopped,
            lacked_s=self._policy().lacked_s if self._stopped == "not tried" else None,
            interrupted=self._stopped == "interrupted",
            ceilings=self._tried_ceilings(),
        )

    def _judge(self) -> Judgement:
        measured = {
            members: self._measured(members, arm) for members, arm in self._arms_by_set.items()
        }
        return Judgement(
            self._evidence, measured, self._policy(), self._patches, self._settings.allowed
        )

    def _name_best(self) -> None:
        """Tell the log what would be recommended now, for the user who waits."""
        judgement = self._judge()
        best = judgement.recommended()
        if best is not None:
            figures = speedup(judgement.intervals[best])
            self._log.best = f"{judgement.measured[best].arm.label} {figures}"

    def _launch_doubts(self) -> list[Fact]:
        """Return what weakens all figures, by how the launches were made."""
        engine = self._log.engine
        doubts = engine.failures.doubts
        if self._settings.why_in_turns is not None and self._log.pairs:
            doubts.append(fact("launches-in-turns", why=within(self._settings.why_in_turns)))
        for arm in self._arms_by_set.values():
            if arm.timings:
                doubts += self._specs.unsettled(arm.fixes, engine.warmup_steps(arm.spec))
        return each_once(doubts)

    def _tried_ceilings(self) -> list[TriedCeiling]:
        """Return the outcome of each ceiling, also where it was not tried."""
        switched = self._log.switched
        launched = {key for series in switched for key in series.keys}
        can_be_tried = all(self._can_switch(arm) for _, arm in self._ceilings)
        conditions = ceilings.conditions(switched, self._settings.steps)
        return ceilings.tried(
            self._ceilings, self._evidence, launched if can_be_tried else None, conditions
        )
