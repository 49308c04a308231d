"""The search that keeps every node of a cluster busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchdoctor.clusters.engine import ClusterEngine
from torchdoctor.clusters.fleet import NoNodeLeftError
from torchdoctor.launch.launch_spec import UNTOUCHED
from torchdoctor.schema import fact, message, within
from torchdoctor.schema.errors import TorchdoctorError
from torchdoctor.trials.arm_specs import ArmSpecs
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.beliefs import Beliefs, Members
from torchdoctor.trials.log import BudgetEnded, Log, Stopped
from torchdoctor.trials.measurement_options import Action
from torchdoctor.trials.prices import Prices
from torchdoctor.trials.search import PAIR, Search, SearchSettings
from torchdoctor.trials.search_policy import SearchPolicy


def expecting(policy: SearchPolicy, pending: Sequence[Members], seed: int) -> SearchPolicy:
    """Return the policy as if each pair that is measured now had shown what is expected of it.

    So the next pair is one that is worth its time beside these. Nothing is claimed by it.
    """
    if not pending:
        return policy
    beliefs = policy.beliefs
    pairs = dict(policy.results.pairs)
    for members in pending:
        pairs[members] = [*pairs.get(members, ()), beliefs.mean_gain(members)]
    results = replace(policy.results, pairs=pairs)
    arms = [*beliefs.arms.values()]
    return SearchPolicy(Beliefs(arms, beliefs.step, results, seed), policy.prices)


class ClusterSearch(Search):
    """A search whose pairs are begun as long as a node has room, and taken as they end.

    All else (launches that switch, other seeds) is measured here, once no pair runs.
    """

    def __init__(
        self, log: Log, specs: ArmSpecs, arms: list[Arm], settings: SearchSettings
    ) -> None:
        super().__init__(log, specs, arms, settings)
        assert isinstance(log.engine, ClusterEngine)
        self._engine = log.engine
        self._pending: list[tuple[Members, Arm]] = []  # each set with the arm of its pair

    def run(self) -> None:
        """Measure until the policy stops, or something ends the search; leave nothing running."""
        try:
            super().run()
        finally:
            self._engine.close()

    def _next(self) -> Action:
        while True:
            while self._pending and self._take_ended(0.0):
                pass
            if self._engine.fleet.room or not self._pending:
                pending = [members for members, _ in self._pending]
                policy = expecting(self._policy(), pending, self._settings.seed)
                action = policy.next()
                if not self._pending or action.kind == "pair":
                    return action
            if not self._take_ended(max(self._log.budget.left(), 0.0)):
                for _, arm in self._pending:
                    arm.cut_off_pairs += 1
                raise BudgetEnded

    def _measure_pair(self, members: Members) -> None:
        arm = self._arm_of_next_pair(members)
        log = self._log
        if arm is None:
            return
        if not log.affords(log.baseline, arm):
            self._too_dear.add(members)
            return
        log.tell(PAIR, f"Nodes compare {arm.label} with {log.baseline.label} in pairs")
        try:
            self._engine.begin(arm.spec, UNTOUCHED, log.budget.left())
        except TorchdoctorError as error:
            why = error.why if isinstance(error, NoNodeLeftError) else message(str(error))
            raise Stopped(fact("trials-stopped", why=within(why))) from error
        self._pending.append((members, arm))

    def _take_ended(self, most_s: float) -> bool:
        """Take the first pair that ends within this time; return False where none does."""
        ended = self._engine.end(most_s)
        if ended is None:
            return False
        spec, outcome, seconds = ended
        members, arm = next(pair for pair in self._pending if pair[1].spec.name == spec.name)
        self._pending.remove((members, arm))
        arm.cost_s += sum(seconds)
        self._log.take(arm, outcome)
        self._judge_pair(members, arm)
        self._name_best()
        return True

    def _prices(self) -> Prices:
        """Return prices by the time of nodes, of which there is as much as nodes."""
        prices = super()._prices()
        nodes = max(self._engine.fleet.count, 1)
        return replace(prices, budget_s=nodes * prices.budget_s, left_s=nodes * prices.left_s)
