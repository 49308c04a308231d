"""A program that is never started: launches with known speed, noise, losses and failures."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torchdoctor.bench.engine import Engine
from torchdoctor.clusters.engine import ClusterEngine
from torchdoctor.clusters.search import ClusterSearch
from torchdoctor.launch.launch_spec import BASELINE, FixFile, LaunchSpec, Switching
from torchdoctor.schema import (
    AppliedFix,
    Block,
    Boundary,
    Candidate,
    Evidence,
    Fingerprint,
    FixSet,
    LaunchTiming,
    StepStatistics,
    SwitchedLaunch,
    TriedCeiling,
    fact,
    message,
)
from torchdoctor.schema.figures import fixes_with_settings
from torchdoctor.trials.arm_specs import PATCH
from torchdoctor.trials.arms import FixFacts
from torchdoctor.trials.ceilings import CeilingTrial
from torchdoctor.trials.log import Budget
from torchdoctor.trials.search import SearchSettings, run_trials

QUIET = (0.004, 0.002, 0.0)  # offset of a launch, random walk, share of launches with a spike
TYPICAL = (0.015, 0.008, 0.08)

FULL = "TORCHDOCTOR_FULL_SIMULATION" in os.environ  # of benchmarks/search_simulation.py


def seeds(count: int) -> range:
    """Return the seeds of so many simulated searches, of which the suite takes a tenth."""
    return range(count if FULL else max(3, count // 10))


NO_LOADER = CeilingTrial(
    row=TriedCeiling(
        ceiling="loader-batches", branch="data_loader", removes="its data loader", share=0.6
    ),
    fixes=FixSet.of("no-loader"),
)


@dataclass
class Simulated:
    """Launches on a simulated machine with its own clock.

    Attributes:
        gains: fix id, or label with settings, to its true speed-up (the label counts first).
        ends: the same to the `ended` of its launches, instead of "measured".
        launch_s: wall time of one launch of the untouched program, with steps of `step_s`.
        setup_s: one-time cost by fix id.
        losses: of a launch, from (fixes, seed offset).
        interrupt_at: the launch number that Ctrl-C falls into.
    """

    gains: dict[str, float] = field(default_factory=dict)
    noise: tuple[float, float, float] = QUIET
    seed: int = 0
    ends: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    launch_s: float = 5.0
    step_s: float = 0.1  # of the untouched program
    setup_s: dict[str, float] = field(default_factory=dict)
    losses: Callable[[list[tuple[str, dict[str, Any]]], int], list[float | None]] | None = None
    fingerprints: Callable[[list[tuple[str, dict[str, Any]]], int], list[Fingerprint]] | None = None
    interrupt_at: int | None = None
    samples_per_step: float | None = 32.0
    bursts: dict[str, int] = field(default_factory=dict)  # fix id to batches that arrive together

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now, self.drift = 0.0, 0.0
        self.launched: list[tuple[str, int]] = []
        self.began: list[float] = []

    def clock(self) -> float:
        """Simulated seconds."""
        return self.now

    def __call__(
        self, fixes: list[tuple[str, dict[str, Any]]], *, seed_offset: int = 0
    ) -> LaunchTiming:
        """One launch."""
        names = [_label(fix, settings) for fix, settings in fixes]
        self.launched.append((" + ".join(names), seed_offset))
        self.began.append(self.now)
        if self.interrupt_at is not None and len(self.launched) == self.interrupt_at:
            self.now += self.launch_s / 2
            raise KeyboardInterrupt
        setup_s = 2.0 + sum(self.setup_s.get(fix, 0.0) for fix, _ in fixes)
        self.now += self.launch_s - 2.0 + setup_s
        for key in (*names, *(fix for fix, _ in fixes)):
            if key in self.ends:
                ended = self.ends[key]
                return LaunchTiming(
                    ended=ended, why=message(f"{key}: {ended}."), fixes=self._applied(fixes)
                )
        step_s = self.step_s * math.exp(self._log_noise())
        for (fix, _), name in zip(fixes, names, strict=True):
            step_s /= self.gains.get(name, self.gains.get(fix, 1.0))
        steps = self._steps(step_s, fixes)
        return LaunchTiming(
            ended="measured",
            step_s=steps,
            samples=None if self.samples_per_step is None else self.samples_per_step * len(steps),
            window_s=sum(steps),
            losses=self.losses(fixes, seed_offset)
            if self.losses
            else [2.0 - 0.01 * i for i in range(40)],
            fingerprints=self.fingerprints(fixes, seed_offset) if self.fingerprints else [],
            peak_memory_bytes=1000 + 10 * len(fixes),
            fixes=self._applied(fixes),
            setup_s=setup_s,
            wall_s=self.launch_s,
        )

    def _log_noise(self) -> float:
        offset, walk, spikes = self.noise
        self.drift += self.random.gauss(0.0, walk)
        spike = self.random.expovariate(20.0) if self.random.random() < spikes else 0.0
        return self.drift + self.random.gauss(0.0, offset) + spike

    def _steps(self, step_s: float, fixes: list[tuple[str, dict[str, Any]]]) -> list[float]:
        together = max((self.bursts.get(fix, 1) for fix, _ in fixes), default=1)
        quick = step_s / 20
        slow = step_s * together - quick * (together - 1)
        return [slow if i % together == 0 else quick for i in range(20)]

    def _applied(self, fixes: list[tuple[str, dict[str, Any]]]) -> list[AppliedFix]:
        return [
            AppliedFix(fix=fix, state=self.states.get(fix, "applied"), why=says_why(fix))
            for fix, _ in fixes
        ]


def says_why(fix: str) -> Evidence:
    """Return the reason that each fix of a simulated program gives for its state."""
    return fact("says-why", fix=fix)


@dataclass
class SimulatedSwitching:
    """Switching launches of a simulated program: one offset for all blocks, noise of each.

    Attributes:
        block_s: wall time of a block of the untouched program.
        ends_after: blocks, after which the program fails.
        fatal: the fix that the program fails with; "after": without any, after one of a ceiling.
        cut: fixes that are left out after their first block.
        ahead: the untouched program does not wait for its device but at the end of a block.
    """

    program: Simulated
    setup_s: float = 3.0
    block_s: float = 0.5
    ends_after: int | None = None
    fatal: str | None = None
    cut: tuple[str, ...] = ()
    ahead: bool = False
    launched: list[list[str]] = field(default_factory=list)

    def has_room(self, arms: Sequence[Any], rounds: int) -> bool:
        """As long as ten minutes."""
        return self.launch_s(arms, rounds) <= 600.0

    def launch_s(self, arms: Sequence[Any], rounds: int) -> float:
        """Seconds of a launch."""
        return self.setup_s + rounds * self.block_s * (len(arms) + 2)

    def __call__(
        self, arms: Sequence[list[tuple[str, dict[str, Any]]]], *, rounds: int, seed: int
    ) -> SwitchedLaunch:
        """One launch; arms whose fix is not "applied" show no effect."""
        program, order = self.program, random.Random(seed)
        names = [_label(*arm[0]) for arm in arms]
        self.launched.append(names)
        program.launched.append(("switching: " + ", ".join(names), 0))
        program.now += self.setup_s
        blocks: list[Block] = []
        offset = program.random.gauss(0.0, program.noise[0])
        for number in range(rounds):
            for arm in [0, *order.sample(range(1, len(arms) + 1), len(arms)), 0]:
                if len(blocks) == self.ends_after:
                    return self._result("failed", blocks, arms)
                name = arms[arm - 1][0][0] if arm else None
                if name in self.cut and number:
                    continue
                after = self.fatal == "after" and number and not arm and self._takes_away(arms)
                if after or (name is not None and name == self.fatal):
                    return self._result("failed", blocks, arms, failed_in=arm)
                blocks.append(self._block(arm, number, arms, offset))
        return self._result("measured", blocks, arms)

    def _block(self, arm: int, number: int, arms: Sequence[Any], offset: float) -> Block:
        program = self.program
        began, step_s = program.now, 0.1 * math.exp(offset + program.random.gauss(0.0, 0.01))
        for fix, settings in arms[arm - 1] if arm else []:
            step_s /= program.gains.get(_label(fix, settings), program.gains.get(fix, 1.0))
        program.now += self.block_s * step_s / 0.1
        steps = [step_s] * 5
        if self.ahead and (not arm or arms[arm - 1][0][0] not in program.gains):
            steps = [step_s / 4] * 4 + [4 * step_s]
        return Block(
            arm=arm,
            round=number,
            began_s=began,
            ended_s=program.now,
            step_s=steps,
            samples=160.0,
            window_s=5 * step_s,
        )

    def _takes_away(self, arms: Sequence[Any]) -> bool:
        return any(arm[0][0].startswith("no-") for arm in arms)

    def _result(
        self, ended: str, blocks: list[Block], arms: Sequence[Any], failed_in: int | None = None
    ) -> SwitchedLaunch:
        applied = [self.program._applied(arm) for arm in arms]
        return SwitchedLaunch(ended=ended, blocks=blocks, arms=applied, failed_in=failed_in)


@dataclass
class SimulatedPairs:
    """Two launches of a simulated program side by side: what drifts and spikes meets both.

    Attributes:
        alone: fixes whose launch fails beside another one; "all": every pair, for want of a port.
        crashes: fixes whose launch fails after half of its blocks; "late": its block never ends;
            "paused": its first one did not, by itself it does. "": of the untouched program too.
        first: whether one that crashes comes as far as that before the other one does.
        blocks: of each side.
        loads: times as long that each block of the untouched program takes, as beside others.
    """

    program: Simulated
    alone: tuple[str, ...] = ()
    crashes: dict[str, str] = field(default_factory=dict)
    first: bool = False
    blocks: int = 8
    loads: tuple[float, ...] = ()
    pairs: list[tuple[str, str]] = field(default_factory=list)

    def __call__(
        self,
        one: list[tuple[str, dict[str, Any]]],
        other: list[tuple[str, dict[str, Any]]],
        order: random.Random,
        most_s: float,
    ) -> tuple[LaunchTiming, LaunchTiming, list[tuple[Block, Block]]]:
        """Both launched; blocks of a pair share the drift, each launch has its offset."""
        program = self.program
        names = [" + ".join(_label(*fix) for fix in side) for side in (one, other)]
        self.pairs.append((names[0], names[1]))
        wanted = {fix for side in (one, other) for fix, _ in side}
        if "paused" in {self.crashes.get(fix) for fix in wanted}:
            both = [self._without_blocks(program(side)) for side in (one, other)]
            return both[0], replace(both[1], late=True), []
        fails = "all" in self.alone or wanted & set(self.alone)
        noise, program.noise = program.noise, (program.noise[0], 0.0, 0.0)
        program.drift = 0.0  # what happens meanwhile happens to both
        try:
            both = [program(one), program(other)]
        finally:
            program.noise = noise
        if fails:
            both[1] = LaunchTiming(ended="failed", why=message("Address already in use"))
        if fails or not all(timing.ended == "measured" for timing in both):
            ended = [self._without_blocks(timing) for timing in both]
            return ended[0], ended[1], []
        sides = [[self._block(timing, n) for n in range(self.blocks)] for timing in both]
        for fixes, blocks in zip((one, other), sides, strict=True):
            for number, load in enumerate(self.loads if not fixes else ()):
                slower = [step_s * load for step_s in blocks[number].step_s]
                blocks[number] = replace(blocks[number], step_s=slower, window_s=sum(slower))
        taken = [self._taken(*side) for side in zip((one, other), both, sides, strict=True)]
        return taken[0], taken[1], list(zip(*sides, strict=True))

    def _without_blocks(self, timing: LaunchTiming) -> LaunchTiming:
        if timing.ended != "measured":
            return timing
        why = fact("stopped-unmeasured", last_line=None, layer=None)
        return LaunchTiming(ended="failed", why=why, stopped=True)

    def _taken(self, fixes: Any, timing: LaunchTiming, blocks: list[Block]) -> LaunchTiming:
        """With what became of it after its blocks."""
        names = [fix for fix, _ in fixes] or [""]
        how = next((self.crashes[fix] for fix in names if fix in self.crashes), None)
        gone = 100 if how is None or self.first else 60
        timing = replace(timing, iterations=gone)
        if how == "failed":
            why = fact("ended-with-code", exit_code=1, last_line=None)
            timing = replace(timing, ended="failed", why=why)
        return replace(timing, blocks=blocks, stopped=how != "failed", late=how == "late")

    def _block(self, whole: LaunchTiming, number: int) -> Block:
        noise = math.exp(self.program.random.gauss(0.0, 0.01))
        steps = [step * noise for step in whole.step_s]
        return Block(round=number, step_s=steps, window_s=sum(steps), samples=whole.samples)


def _label(fix: str, settings: dict[str, Any]) -> str:
    return " ".join([fix, *(f"{name}={value}" for name, value in settings.items())])


def candidates(*names: str, ceilings: Mapping[str, float] | None = None) -> list[Candidate]:
    """Candidates from "fix", "fix name=value", or "fix & another": the other goes with it."""
    found = []
    for name in names:
        (fix, settings), *also = (_parsed(part) for part in name.split(" & "))
        most = (ceilings or {}).get(fix)
        found.append(Candidate(fixes=FixSet({fix: settings, **dict(also)}), ceiling=most))
    return found


def _parsed(name: str) -> tuple[str, dict[str, Any]]:
    fix, *settings = name.split()
    return fix, {key: int(value) for key, value in (s.split("=") for s in settings)}


def observed(**fields: Any) -> StepStatistics:
    """Statistics of the observed launch; even steps."""
    known: dict[str, Any] = {"steps": 20, "warmup_steps": 20, "median_s": 0.1, "mean_s": 0.1}
    known |= {"p10_s": 0.1, "p90_s": 0.1}
    return StepStatistics(boundary=Boundary(kind="loader"), **{**known, **fields})


def _no_patch(fixes: FixSet) -> str | None:
    return None


@dataclass
class SimulatedStarts:
    """Starts the launches of an engine: by themselves, side by side, or switching."""

    program: Any  # called with fixes
    pairs: Any = None  # called with the fixes of both
    blocks: Any = None  # called with the fixes of each arm
    expected_s: float = 0.0
    image_s: float = 0.0

    @property
    def recorder(self) -> Any:
        return SimpleNamespace(doubts=[], escaped=[], contacts=[])

    @property
    def side_by_side(self) -> bool:
        return self.pairs is not None

    def shortened_s(self, half_s: float) -> float:
        return half_s

    def alone(self, arm: LaunchSpec, most_s: float) -> LaunchTiming:
        return self.program(fixes_of(arm), seed_offset=arm.seed_offset)

    def together(
        self, arms: tuple[LaunchSpec, LaunchSpec], chance: random.Random, most_s: float
    ) -> tuple[LaunchTiming, LaunchTiming]:
        return self.pairs(fixes_of(arms[0]), fixes_of(arms[1]), chance, most_s)[:2]

    def switch(
        self, arms: Sequence[LaunchSpec], rounds: int, most_s: float, seed: int
    ) -> SwitchedLaunch:
        return self.blocks([fixes_of(arm) for arm in arms], rounds=rounds, seed=seed)

    def warmup_steps(self, arm: LaunchSpec, beside: bool) -> int:
        return 0


@dataclass
class SimulatedSpecs:
    """Makes the arms of a simulated program.

    Attributes:
        setup_s: one-time cost that is announced, by fix id.
        switched: ids of fixes that can be switched within one launch.
        make_patch: takes the fixes; says why there is no patch.
        why_untried: no patch can be launched, as without an overlay.
    """

    setup_s: Mapping[str, float] = field(default_factory=dict)
    switched: Sequence[str] = ()
    make_patch: Callable[[FixSet], str | None] = _no_patch
    why_untried: str | None = None

    def of(self, fixes: FixSet) -> LaunchSpec:
        switches = all(fix in self.switched or fix.startswith("no-") for fix in fixes)
        return LaunchSpec(
            name=fixes_with_settings(fixes) or BASELINE,
            fixes=tuple(FixFile(fix, Path(), settings) for fix, settings in fixes.items()),
            setup_s=sum(self.setup_s.get(fix, 0.0) for fix in fixes),
            switching=Switching() if switches else None,
        )

    def patch(self, fixes: FixSet) -> tuple[Any, str | None]:
        patch = SimpleNamespace(fixes=list(fixes), left_out=[])
        lacking = self.make_patch(fixes)
        return (None, lacking) if lacking else (patch, self.why_untried)

    def patched(self, patch: Any, fixes: FixSet) -> LaunchSpec:
        """Return the fixes with "patch" before them: what it gains comes on top of theirs."""
        own = [FixFile(PATCH, Path(), {}), *(FixFile(fix, Path(), x) for fix, x in fixes.items())]
        return LaunchSpec(name=PATCH, fixes=tuple(own))

    def unsettled(self, fixes: FixSet, warmup_steps: int) -> list[str]:
        return []


def fixes_of(arm: LaunchSpec) -> list[tuple[str, dict[str, Any]]]:
    """Fixes of an arm with their settings."""
    return [(fix.id, fix.settings) for fix in arm.fixes]


def engine_of(program: Any, seed: int = 0, **more: Any) -> Engine:
    """An engine on the program's clock; `more`: of `SimulatedStarts`."""
    starts = SimulatedStarts(program, **{"expected_s": 5.0, **more})
    return Engine(starts, random.Random(seed), clock=program.clock)  # type: ignore[arg-type]


def try_all(
    program: Simulated, names: list[str], budget_s: float | None = None, **more: Any
) -> Any:
    """`run_trials` on a simulated program; `could_gain`: by fix, a speed-up at most.

    `more`: `facts` by fix, `progress`, fields of `SimulatedSpecs` and of `SearchSettings`;
    `pairs`: starts them side by side; `switching`: starts launches that switch.
    """
    facts, could_gain = more.pop("facts", {}), more.pop("could_gain", None)
    fields = ("make_patch", "why_untried", "setup_s", "switched")
    specs: Any = SimulatedSpecs(**{name: more.pop(name) for name in fields if name in more})
    pairs, blocks = more.pop("pairs", None), more.pop("switching", None)
    engine = engine_of(
        program, more.get("seed", 0), pairs=pairs, blocks=blocks, expected_s=program.launch_s
    )
    kind = None
    if (nodes := more.pop("nodes", None)) is not None:
        kind, starts = ClusterSearch, SimulatedStarts(program, pairs, blocks, program.launch_s)
        engine = ClusterEngine(
            starts,  # type: ignore[arg-type]
            random.Random(0),
            fleet=nodes,
            clock=program.clock,
        )
    tried = candidates(*names, ceilings=could_gain)
    tried = more.pop("tried", tried)
    known = {part.split()[0]: FixFacts() for name in names for part in name.split(" & ")}
    progress = more.pop("progress", None)
    settings = {
        "kind": kind,
        "steps": observed(),
        "patch": specs.make_patch is not _no_patch,
        **more,
    }
    return run_trials(
        engine,
        specs,
        tried,
        {**known, **facts},
        budget=Budget(budget_s, program.clock),
        settings=SearchSettings(**settings),
        progress=progress,
    )
