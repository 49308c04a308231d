"""What the engine makes of launches that run, fail, hang or cannot run beside each other."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from torchdoctor.bench.engine import Engine
from torchdoctor.bench.failures import Failed, Lost
from torchdoctor.bench.pair_times import Estimator
from torchdoctor.launch.launch_spec import UNTOUCHED, FixFile, LaunchSpec, Switching
from torchdoctor.schema import (
    AppliedFix,
    Block,
    LaunchTiming,
    Pair,
    SwitchedLaunch,
    fact,
    message,
    within,
)

ENDED = message("ValueError: no")
AMP = LaunchSpec(name="amp", fixes=(FixFile("amp", Path("amp.py"), {}),))
CACHE = LaunchSpec(name="cache", fixes=(FixFile("cache", Path("cache.py"), {}),))
How = Callable[[LaunchSpec, int], LaunchTiming]


def timing(arm: LaunchSpec, step_s: float = 0.1, **changes: Any) -> LaunchTiming:
    """A launch of two blocks that was measured, of 90 iterations; `changes` as it ended else."""
    blocks = [Block(step_s=[step_s] * 5, window_s=5 * step_s, round=turn) for turn in (1, 2)]
    fixes = [AppliedFix(fix=fix.id, state="applied") for fix in arm.fixes]
    whole = LaunchTiming(
        ended="measured", step_s=[step_s] * 10, blocks=blocks, fixes=fixes, iterations=90
    )
    return replace(whole, **{"stopped": True, **changes})


def broken(arm: LaunchSpec, **changes: Any) -> LaunchTiming:
    """A launch that ended by itself, with an error."""
    known = {"ended": "failed", "why": ENDED, "stopped": False, "iterations": 60}
    return timing(arm, **{**known, **changes})


@dataclass
class Program:
    """Launches that are not made; `beside` and `alone` say how each arm's launches end.

    Attributes:
        launched: names, in order; two together in a tuple.
    """

    beside: dict[str, How] = field(default_factory=dict)
    alone_: dict[str, How] = field(default_factory=dict)
    side_by_side: bool = True
    blocks: Any = None
    expected_s: float = 5.0
    launched: list[Any] = field(default_factory=list)
    now_s: float = 0.0

    def clock(self) -> float:
        return self.now_s

    def shortened_s(self, half_s: float) -> float:
        return half_s

    def alone(self, arm: LaunchSpec, most_s: float) -> LaunchTiming:
        self.launched.append(arm.name)
        self.now_s += 5.0
        number = self.launched.count(arm.name)
        how = self.alone_.get(arm.name, lambda arm, number: timing(arm, stopped=False))
        return replace(how(arm, number), blocks=[])

    def together(
        self, arms: tuple[LaunchSpec, LaunchSpec], chance: random.Random, most_s: float
    ) -> tuple[LaunchTiming, LaunchTiming]:
        pair = (arms[0].name, arms[1].name)
        self.launched.append(pair)
        self.now_s += 10.0
        number = self.launched.count(pair)
        first, second = (
            self.beside.get(arm.name, lambda arm, number: timing(arm))(arm, number) for arm in arms
        )
        return first, second

    def switch(
        self, arms: Sequence[LaunchSpec], rounds: int, most_s: float, seed: int
    ) -> SwitchedLaunch:
        raise NotImplementedError


def engine_of(program: Program, patience: int = 0) -> Engine:
    return Engine(program, random.Random(0), patience=patience, clock=program.clock)


def test_a_pair_side_by_side_is_one_difference() -> None:
    program = Program(beside={"amp": lambda arm, _: timing(arm, step_s=0.05)})
    pair = engine_of(program).pair(AMP)
    assert isinstance(pair, Pair) and pair.side_by_side and len(pair.blocks) == 2
    assert Estimator().difference(pair) == pytest.approx(0.6931, abs=1e-3)
    assert pair.seconds == (5.0, 5.0)


def test_launches_in_turns_are_ab_and_then_ba() -> None:
    program = Program(side_by_side=False)
    engine = engine_of(program)
    program.alone_["amp"] = lambda arm, _: timing(arm, step_s=0.05, stopped=False)
    pairs = [engine.pair(replace(AMP), replace(UNTOUCHED)) for _ in range(4)]
    assert all(isinstance(pair, Pair) and not pair.side_by_side for pair in pairs)
    assert [Estimator().difference(pair) for pair in pairs] == pytest.approx([0.6931] * 4, abs=1e-3)
    halves = [program.launched[n : n + 2] for n in range(0, 8, 2)]
    assert halves[0] == halves[1][::-1] and halves[2] == halves[3][::-1]
    assert isinstance(engine.pair(UNTOUCHED), Pair), "the untouched program with itself"


def test_a_fix_that_fails_where_the_other_program_went_on_has_failed() -> None:
    program = Program(beside={"amp": lambda arm, _: broken(arm)})
    assert engine_of(program).pair(AMP) == Failed(name="amp", why=ENDED)


def test_where_nobody_had_come_as_far_the_pair_is_repeated_twice() -> None:
    program = Program(beside={"amp": lambda arm, _: broken(arm, iterations=90)})
    assert isinstance(engine_of(program).pair(AMP), Failed)
    assert len(program.launched) == 3
    once = Program(
        beside={"amp": lambda arm, n: timing(arm) if n > 1 else broken(arm, iterations=90)}
    )
    assert isinstance(engine_of(once).pair(AMP), Pair)
    lost = engine_of(program).pair(AMP, most_s=12.0)
    assert lost == Lost(why=ENDED), "no time for another attempt"


def test_where_the_untouched_program_fails_by_itself_its_blocks_count() -> None:
    program = Program(
        beside={x.name: lambda arm, _: broken(arm, iterations=60) for x in (UNTOUCHED, AMP)}
    )
    engine = engine_of(program)
    assert isinstance(engine.pair(AMP), Pair)
    assert engine.failures.doubts == [fact("untouched-failed", iterations=60)]


def test_what_fails_before_its_first_block_is_launched_by_itself() -> None:
    """A fixed port, or no room for both: it is not the fix that fails."""
    taken = message("Port in use.")
    program = Program(beside={"amp": lambda arm, _: broken(arm, blocks=[], why=taken)})
    engine = engine_of(program)
    pair = engine.pair(AMP)
    assert isinstance(pair, Pair) and not pair.side_by_side
    remark = fact("failed-beside-another", why=within(taken))
    assert engine.failures.remarks("amp") == [remark]
    assert isinstance(engine.pair(CACHE), Pair) and engine.side_by_side
    assert program.launched[-1] == ("baseline", "cache"), "another fix has room"


def test_a_pair_of_the_untouched_program_with_itself_that_fails_is_only_lost() -> None:
    program = Program(beside={"baseline": lambda arm, _: broken(arm, blocks=[])})
    engine = engine_of(program)
    assert isinstance(engine.pair(UNTOUCHED), Lost) and engine.side_by_side
    assert engine.runs_beside(AMP)


def test_where_two_fixes_are_fine_alone_it_is_the_program_that_cannot_run_twice() -> None:
    nothing = lambda arm, _: broken(arm, blocks=[])  # noqa: E731
    program = Program(beside={"amp": nothing, "cache": nothing})
    engine = engine_of(program)
    engine.pair(AMP)
    engine.pair(CACHE)
    assert not engine.runs_beside(LaunchSpec(name="third")) and not engine.side_by_side
    assert engine.failures.doubts[0].fact == "never-beside-itself"


def test_memory_that_ends_beside_another_launch_is_tried_alone() -> None:
    program = Program(beside={"amp": lambda arm, _: broken(arm, ended="out-of-memory")})
    pair = engine_of(program).pair(AMP)
    assert isinstance(pair, Pair) and not pair.side_by_side


@pytest.mark.parametrize("ran_before", [False, True])
def test_a_turn_that_never_ends_is_a_failure_or_after_pairs_that_ran_repeated(
    ran_before: bool,
) -> None:
    def hangs(arm: LaunchSpec, number: int) -> LaunchTiming:
        fine = number == 1 and ran_before
        return timing(arm) if fine else timing(arm, late=True, iterations=60)

    program = Program(beside={"amp": hangs})
    engine = engine_of(program)
    if ran_before:
        assert isinstance(engine.pair(AMP), Pair)
    outcome = engine.pair(AMP)
    assert isinstance(outcome, Failed) and outcome.why.fact in (
        "block-given-up",
        "warm-up-given-up",
    )
    assert len(program.launched) == (3 if ran_before else 1)


def test_a_fix_that_was_not_applied_is_refused() -> None:
    for state, why in (
        ("refused", fact("no-gpu-here")),
        ("pending", fact("found-nothing", fix="amp")),
    ):
        fixes = [AppliedFix(fix="amp", state=state, why=why if state == "refused" else None)]
        program = Program(beside={"amp": lambda arm, _, fixes=fixes: timing(arm, fixes=fixes)})
        assert engine_of(program).pair(AMP) == Failed(name="amp", why=why, kind="refused")


def test_the_untouched_program_may_fail_once() -> None:
    once = Program(
        side_by_side=False,
        alone_={"baseline": lambda arm, n: timing(arm) if n > 1 else broken(arm)},
    )
    assert isinstance(engine_of(once).pair(AMP), Pair)
    always = Program(side_by_side=False, alone_={"baseline": lambda arm, _: broken(arm)})
    outcome = engine_of(always).pair(AMP)
    assert isinstance(outcome, Failed) and outcome.name == "baseline"


def test_a_gate_forgives_two_failures() -> None:
    program = Program(beside={"amp": lambda arm, n: timing(arm) if n == 3 else broken(arm)})
    engine = engine_of(program, patience=2)
    assert isinstance(engine.pair(AMP), Pair) and len(program.launched) == 3
    assert engine.failures.broke_down["amp"] == [ENDED] * 2
    assert isinstance(engine.pair(AMP), Failed)


def test_what_is_compiled_is_paid_once() -> None:
    program = Program(side_by_side=False)
    engine = engine_of(program)
    compiled = replace(AMP, setup_s=60.0)
    assert engine.expected_s(AMP) == 10.0 and engine.expected_s(compiled) == 70.0
    program.alone_["amp"] = lambda arm, n: timing(arm)
    engine.pair(compiled)
    assert engine.once_s(compiled) == 0.0, "it compiled nothing"


def test_a_setting_is_priced_by_what_another_one_of_its_fix_took() -> None:
    """Announced were 60 and 100 s; the first took nothing beyond an untouched launch."""
    program = Program(side_by_side=False)
    engine = engine_of(program)
    compiled = replace(AMP, setup_s=60.0)
    tuned = replace(AMP, name="amp, tuned", setup_s=100.0)
    other = replace(CACHE, setup_s=100.0)
    assert engine.once_s(tuned) == 100.0
    program.alone_["amp"] = lambda arm, n: timing(arm)
    engine.pair(compiled)
    engine.pair(compiled)
    assert engine.once_s(tuned) == 40.0 and engine.once_s(other) == 100.0
    assert engine.expected_launch_s(tuned) == engine.expected_launch_s(UNTOUCHED) + 40.0


def test_only_what_can_be_switched_is() -> None:
    engine = engine_of(Program(blocks=object()))
    assert engine.can_switch(replace(AMP, switching=Switching())) and not engine.can_switch(AMP)
    assert not engine_of(Program()).can_switch(replace(AMP, switching=Switching()))


def test_a_pair_that_the_budget_cut_off_says_nothing_of_the_fix() -> None:
    """Neither a failed fix nor one set apart: nobody may take it for one that hangs."""
    cut = {"ended": "timed-out", "why": message("too late"), "cut_off": True, "stopped": False}
    for blocks in ([], timing(AMP).blocks[:1]):
        program = Program(beside={"amp": lambda arm, _, x=blocks: timing(arm, blocks=x, **cut)})
        engine = engine_of(program)
        outcome = engine.pair(AMP, most_s=60.0)
        assert isinstance(outcome, Lost) and outcome.cut_off
        assert len(program.launched) == 1, "there is no time for another one"
        assert not engine.failures.remarks("amp") and engine.runs_beside(AMP)
    in_turns = Program(side_by_side=False)
    in_turns.alone_["amp"] = lambda arm, _: timing(arm, step_s=0.05, **cut)
    outcome = engine_of(in_turns).pair(AMP)
    assert isinstance(outcome, Lost) and outcome.cut_off


def test_whole_blocks_count_where_the_budget_cut_a_pair_off() -> None:
    program = Program(beside={"amp": lambda arm, _: timing(arm, cut_off=True)})
    assert isinstance(engine_of(program).pair(AMP), Pair)
