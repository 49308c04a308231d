"""The arms of a search: the untouched program, a candidate, or several fixes together."""

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchdoctor.advice import catalogue
from torchdoctor.launch.launch_spec import BASELINE, LaunchSpec
from torchdoctor.schema import Candidate, Evidence, FixSet, LaunchTiming, Recording
from torchdoctor.schema.figures import fixes_with_settings
from torchdoctor.schema.specs import RISKS, FixSpec
from torchdoctor.trials.arm_specs import ArmSpecs
from torchdoctor.trials.samples import Preparation

# Waits: of their fixes the best alone counts. Other phases of the host bound nothing on a device.
COMPETING = frozenset({"data_wait_s", "loader_start_s"})
_WIDE_GAP = 8  # times: two named values so far apart have one between them tried


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """A setting that may be any whole number between two; the value of `today` gains nothing."""

    setting: str
    least: int
    most: int
    today: int | None = None

    def further(self, named: Collection[int]) -> list[int]:
        """Return values beside those that the fix names: within wide gaps, and beyond the ends."""
        rising = sorted(named)
        between = [
            math.sqrt(low * high)
            for low, high in itertools.pairwise(rising)
            if high >= _WIDE_GAP * low > 0
        ]
        ends = [2 * rising[-1], 4 * rising[-1], rising[0] / 2]
        values = [min(max(round(value), self.least), self.most) for value in [*between, *ends]]
        return [value for value in dict.fromkeys(values) if value not in {*named, self.today}]


@dataclass(frozen=True, kw_only=True)
class FixFacts:
    """The facts of a fix that its trials need."""

    keeps_results: str = "within rounding"  # as in its `FixSpec`
    includes: frozenset[str] = frozenset()  # fixes that it applies as well
    phases: frozenset[str] = frozenset()  # of the step, that it works on; empty: not known
    branches: frozenset[str] = frozenset()  # of the decision tree, whose costs it treats
    ladder: Ladder | None = None  # a setting of which more values may be tried
    how: Preparation = field(default_factory=Preparation)  # how it prepares samples
    corrects: bool = False  # results were wrong, and are to change
    doubted: bool = False  # `doubt`: recommended only if it was measured to train the same
    p_helps: float = 0.35  # probability that it helps a program that it is made for

    @property
    def risk(self) -> int:
        """Return 0 for the same result, 1 rounding or order, 2 precision, 3 changed training."""
        return RISKS[self.keeps_results]

    @staticmethod
    def together(facts: "Iterable[FixFacts]") -> "FixFacts":
        """Return the facts of fixes that are switched on together: the riskiest's promise."""
        all_facts = list(facts)
        return replace(
            max(all_facts, key=lambda each: each.risk),
            includes=frozenset().union(*(each.includes for each in all_facts)),
            phases=all_facts[0].phases,
            ladder=all_facts[0].ladder,
            branches=frozenset().union(*(each.branches for each in all_facts)),
            how=Preparation.together(each.how for each in all_facts),
            corrects=any(each.corrects for each in all_facts),
            doubted=any(each.doubted for each in all_facts),
            p_helps=all_facts[0].p_helps,
        )


def fix_facts(fix: FixSpec, recording: Recording) -> FixFacts:
    """Return the facts of a fix for this program."""
    check = recording.main.sample_check
    checks = catalogue.checks()
    values = fix.ladder(recording) if fix.refusal(recording) is None else None
    return FixFacts(
        keeps_results=fix.keeps_results,
        includes=frozenset(fix.includes(recording)),
        phases=frozenset(
            phase for phase in fix.phases if not recording.has_gpu or phase in COMPETING
        ),
        branches=frozenset(checks[ident].branch for ident in fix.treats),
        ladder=None if values is None else Ladder(**values),
        how=Preparation(
            draws_random=None if check is None else check.draws_random,
            elsewhere=fix.prepares_elsewhere,
            reorders=fix.reorders,
        ),
        corrects=fix.keeps_results == "corrects results",
        doubted=fix.doubt(recording) is not None,
        p_helps=fix.p_helps,
    )


@dataclass(kw_only=True)
class Arm:
    """The untouched program, a candidate, or several fixes together."""

    key: str
    spec: LaunchSpec
    facts: FixFacts = field(default_factory=FixFacts)
    candidate: Candidate | None = None
    timings: list[LaunchTiming] = field(default_factory=list)  # usable, with the program's seed
    cost_s: float = 0.0
    failed: Evidence | None = None
    refused: Evidence | None = None
    remarks: list[Evidence] = field(default_factory=list)  # for its row of the report
    further: bool = False  # a setting that its fix does not name
    cut_off_pairs: int = 0  # by the end of the budget
    measured_s: float = 0.0  # while what others held was known
    busy_s: float = 0.0  # of it, while they held much

    @property
    def alive(self) -> bool:
        """Return True if it may be launched again."""
        return self.failed is None and self.refused is None

    @property
    def on_busy_machine(self) -> bool:
        """Return True if others held many processors during most of its measurements."""
        return 2 * self.busy_s > self.measured_s

    @property
    def fixes(self) -> FixSet:
        """Return its fixes with their settings; empty for the untouched program."""
        return FixSet((fix.id, fix.settings) for fix in self.spec.fixes)

    @property
    def label(self) -> str:
        """Return its name for users."""
        unfixed = "the untouched program" if self.key == BASELINE else self.spec.name
        return fixes_with_settings(self.fixes) or unfixed

    def with_settings(
        self, specs: ArmSpecs, key: str, settings: dict[str, Any], further: bool = False
    ) -> "Arm":
        """Return a new candidate whose first fix has these settings."""
        assert self.candidate is not None
        fixes = self.fixes.with_settings(self.fixes.first, settings)
        return Arm(
            key=key,
            spec=specs.of(fixes),
            facts=self.facts,
            candidate=replace(self.candidate, fixes=fixes),
            further=further,
        )


def candidate_arms(
    specs: ArmSpecs, candidates: Sequence[Candidate], facts: dict[str, FixFacts]
) -> list[Arm]:
    """Return the arms of the candidates and, after those of a fix with a ladder, more values."""
    arms = [
        Arm(
            key=f"candidate-{number}",
            spec=specs.of(candidate.fixes),
            facts=FixFacts.together(facts.get(fix, FixFacts()) for fix in candidate.fixes),
            candidate=candidate,
        )
        for number, candidate in enumerate(candidates)
    ]
    for fix in dict.fromkeys(arm.fixes.first for arm in arms):
        alike = [arm for arm in arms if arm.fixes.only == fix]
        ladder = alike[0].facts.ladder if alike else None
        if ladder is None:
            continue
        last = alike[-1]
        settings = last.fixes[fix]
        named = [int(arm.fixes[fix][ladder.setting]) for arm in alike]
        for value in ladder.further(named):
            values = {**settings, ladder.setting: value}
            more = last.with_settings(specs, f"{last.key}-{value}", values, further=True)
            arms.insert(arms.index(last) + 1, more)
    return arms


def together(specs: ArmSpecs, members: Sequence[Arm], key: str, setup_s: float) -> Arm:
    """Return the arm of a set: each fix once, as the first member has it."""
    fixes = FixSet()
    for arm in members:
        fixes = fixes.joined(arm.fixes)
    facts = FixFacts.together(arm.facts for arm in members)
    return Arm(key=key, spec=replace(specs.of(fixes), setup_s=setup_s), facts=facts)
