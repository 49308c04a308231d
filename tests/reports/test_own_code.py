"""Lines of the user's code on the first screen: their cost, their bound, what to write there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples import SAMPLES, between

from torchdoctor.queries.known_shapes import known_shapes
from torchdoctor.reports import own_code
from torchdoctor.reports.document import KeyFigures
from torchdoctor.reports.formats import rendered
from torchdoctor.reports.trial_rows import may_gain_more
from torchdoctor.schema import (
    NOT_WORTH_ITS_TIME,
    OUT_OF_TIME,
    Diagnosis,
    Evidence,
    Finding,
    FixSet,
    Location,
    Recommendation,
    RecommendedFix,
    Report,
    Trial,
    Verdict,
    fact,
)
from torchdoctor.schema.figures import percent

FILE = "/home/ada/projects/flowers/train.py"
ZIP, DEQUE = "zip-opened-for-each-sample", "sample-of-a-deque"


def at(line: int) -> Location:
    return Location(file=FILE, line=line, function=f"f{line}")


def finding(check: str, share: float | None, line: int, **more: Any) -> Finding:
    evidence = [Evidence(fact="told", sentence=f"{check} is told.")]
    return Finding(
        check=check, share_of_step=share, location=at(line), **{"evidence": evidence, **more}
    )


def report(*findings: Finding, detail: str | None = None, **more: Any) -> Report:
    diagnosis = Diagnosis(
        bottleneck="cpu",
        detail=detail or (findings[0].check if findings else None),
        verdict=Verdict(kind="cpu_only", share=0.8),
        findings=list(findings),
    )
    base = {"diagnosis": diagnosis, "recommendation": Recommendation(), "trials": []}
    return replace(SAMPLES["loader_bound"](), **{**base, **more})


def rows(of: Report) -> list[tuple[str, str]]:
    blocks = own_code.blocks(of)
    assert len(blocks) <= 1
    shown: list[tuple[str, str]] = []
    for block in blocks:
        assert isinstance(block, KeyFigures)
        shown += block.rows
    return shown


@pytest.mark.parametrize(
    ("share", "figure"),
    [(0.82, ["5.56x"]), (0.5, ["2.00x"]), (None, []), (0.0, []), (0.999, [])],
)
def test_the_most_that_a_part_can_give(share: float | None, figure: list[str]) -> None:
    """Of nearly all of a step no figure is a bound."""
    assert own_code.most_gain(share).split()[:1] == figure


def test_a_known_shape_is_told_with_its_cost_its_bound_and_what_to_write() -> None:
    ((where, about),) = rows(report(finding("hot-call", 0.8, 12, shape=ZIP)))
    assert where == "train.py:12"
    assert percent(0.8) in about and own_code.most_gain(0.8) in about
    assert known_shapes()[ZIP].write in about


def test_what_spares_more_than_its_line_takes_has_no_bound() -> None:
    """ "1.60x at most" stood beside a change of 3.8x."""
    sparing = [name for name, shape in known_shapes().items() if shape.spares_more]
    assert sparing
    for name in sparing:
        ((_, about),) = rows(report(finding("hot-call", 0.4, 12, shape=name)))
        assert percent(0.4) in about and own_code.most_gain(0.4) not in about
    forward = replace(at(12), function="forward")
    passed = replace(finding("hot-call", 0.4, 12, shape=ZIP), location=forward)
    ((_, about),) = rows(report(passed))
    assert own_code.most_gain(0.4) not in about, "what it spares, its backward pass does too"


def test_of_two_findings_at_one_shape_the_line_is_bounded_by_its_own() -> None:
    """A wait of 71 % bounded a line that draws for 59 % of the step."""
    shown = rows(
        report(
            finding("data-wait", 0.71, 20, shape="weights-drawn-over-millions"),
            finding("epoch-start", 0.59, 25, shape="weights-drawn-over-millions"),
        )
    )
    assert len(shown) == 1
    assert shown[0][0] == "train.py:25"
    assert percent(0.59) in shown[0][1] and percent(0.71) not in shown[0][1]


def test_two_lines_at_most_the_dearest_first() -> None:
    shown = rows(
        report(
            finding("hot-call", 0.2, 12, shape=ZIP),
            finding("hot-call", 0.3, 13, shape=DEQUE),
            finding("hot-call", 0.1, 14, shape="histogram-logged"),
        )
    )
    assert [where for where, _ in shown] == ["train.py:13", "train.py:12"]


def test_what_hardly_costs_anything_or_is_recommended_is_no_line_to_change() -> None:
    assert rows(report(finding("hot-call", 0.04, 12, shape=ZIP))) == []
    assert rows(report(finding("hot-call", None, 12, shape=ZIP))) == []
    fix = RecommendedFix(fix="keep-open", location=at(12))
    recommended = Recommendation(fixes=[fix])
    assert rows(report(finding("hot-call", 0.8, 12, shape=ZIP), recommendation=recommended)) == []


def test_a_function_of_half_a_step_without_a_cure_says_so_until_a_fix_of_it_was_tried() -> None:
    large = finding("hot-call", 0.6, 12, fixes=["keep-result"])
    ((_, about),) = rows(report(large))
    assert own_code.most_gain(0.6) in about and own_code._NO_CURE in about
    assert rows(report(finding("hot-call", 0.4, 12))) == []
    assert rows(report(finding("data-wait", 0.6, 12))) == []  # no function of the program's own
    tried = Trial(fixes=FixSet.of("keep-result"), speedup=between(1.0, 0.9, 1.1))
    assert rows(report(large, trials=[tried])) == []
    refused = Trial(fixes=FixSet.of("keep-result"), verdict="refused")
    assert rows(report(large, trials=[refused])) != []


def test_a_function_has_a_cure_where_another_finding_in_it_says_what_to_do() -> None:
    """Beside "whole tensors, no Python loop" stood "no cure is known for this line"."""
    function = replace(at(12), function="advantages_of")
    hot = replace(finding("hot-call", 0.7, 12), location=function)
    loop = finding("inner-loop", 0.7, 10, fixes=["vectorize"])
    loop = replace(loop, location=replace(function, line=10))
    assert rows(report(hot)) != []
    assert rows(report(hot, loop)) == []
    elsewhere = replace(loop, location=replace(at(10), function="main"))
    assert rows(report(hot, elsewhere)) != []
    outside = replace(loop, check="work-outside-model", fixes=["every-tenth-call"])
    assert rows(report(hot, outside)) != []  # it says the same of any function
    grows = replace(loop, check="growing-step", fixes=[])
    assert rows(report(hot, grows)) == []


def test_a_fix_of_the_causes_function_is_its_cure() -> None:
    """Beside an edit distance that was called less often stood "compute on the whole tensor"."""
    loop = finding("inner-loop", 0.5, 16, severity="high", fixes=["vectorize"])
    called = RecommendedFix(fix="every-tenth-call", location=replace(loop.location, line=20))
    cured = report(loop, recommendation=Recommendation(fixes=[called]))
    assert own_code.is_cured(cured)
    assert own_code.is_told(cured, loop.location)
    other = replace(called, location=at(20))
    elsewhere = report(loop, recommendation=Recommendation(fixes=[other]))
    assert not own_code.is_cured(elsewhere)
    assert not own_code.is_told(elsewhere, loop.location)


def test_a_line_is_told_once_with_one_share() -> None:
    """One line had "73 % of the step" and, as a loop to change by hand, "about 28 %"."""
    shaped = finding("hot-call", 0.7, 23, shape=DEQUE)
    assert own_code.is_told(report(shaped), at(23))
    assert not own_code.is_told(report(shaped), at(19))


def test_advice_of_the_program_itself_stands_alone() -> None:
    """Beside "it takes batches of 1" stood "evaluate every few epochs"."""
    trial = Trial(fixes=FixSet.of("cpu-threads"), speedup=between(1.0, 0.98, 1.02), pairs=3)
    share = finding("evaluation-share", 0.4, 15)
    small = Evidence(fact="small-batches", sentence="It takes batches of 1.", location=at(15))
    advising = [*share.evidence, small]
    for evidence, page in ((share.evidence, True), (advising, False)):
        of = report(replace(share, evidence=evidence), trials=[trial])
        screen = rendered(of, "terminal", full=False, width=100)
        assert ("torchdoctor explain evaluation-share" in screen) is page
    # Nor does the page of a larger finding at the same line: "ask whether its result is the same".
    larger = finding("inner-loop", 0.5, 15)
    assert own_code.to_do(report(share, larger)) != ""
    assert own_code.to_do(report(replace(share, evidence=advising), larger)) == ""


def test_the_bound_of_a_change_by_hand_is_that_of_the_cause_alone() -> None:
    several = report(finding("hot-call", 0.5, 12), finding("data-wait", 0.9, 20))
    assert own_code.most_gain_of_cause(several) == own_code.most_gain(0.5)
    assert own_code.most_gain_of_cause(report(finding("hot-call", None, 12))) == ""
    assert own_code.most_gain_of_cause(report(detail="hot-call")) == ""


def test_a_severe_half_of_the_step_is_told_whatever_its_branch_and_once() -> None:
    """A memset of half a step, with its exact cure, was hidden because its branch was copies."""
    half = finding("dense-embedding", 0.66, 10, severity="high")
    (sentence,) = own_code.large_findings(report(half), [])
    assert "train.py:10" in sentence
    assert own_code.large_findings(report(half), half.evidence) == []
    for other in (
        replace(half, severity="moderate"),
        replace(half, share_of_step=0.4),
        replace(half, check="data-wait"),  # the answer to a question of the tree
        replace(half, evidence=[]),
        replace(half, check="of-another-version"),
    ):
        assert own_code.large_findings(report(other), []) == []


def test_the_advice_beside_a_line_is_of_its_own_finding() -> None:
    """Beside a replay buffer stood "compute metrics every so many steps"."""
    trial = Trial(fixes=FixSet.of("cpu-threads"), speedup=between(1.0, 0.98, 1.02), pairs=3)
    shaped = report(finding("hot-call", 0.8, 17, shape=DEQUE), trials=[trial])
    explained = "torchdoctor explain hot-call"
    screen = " ".join(rendered(shaped, "terminal", full=False, width=100).split())
    assert known_shapes()[DEQUE].write in screen
    assert explained not in screen
    plain = report(finding("hot-call", 0.4, 17), trials=[trial])
    screen = " ".join(rendered(plain, "terminal", full=False, width=100).split())
    assert own_code.most_gain(0.4) in screen and explained in screen


def untried(fix: str, because: str = OUT_OF_TIME, **more: Any) -> Trial:
    return Trial(fixes=FixSet.of(fix), choice=fact(because), **more)


@pytest.mark.parametrize(
    ("share", "trial", "may"),
    [
        (0.5, untried("keep-result"), True),
        (0.02, untried("keep-result"), False),  # it cannot gain more than what it treats
        (0.5, untried("keep-result", NOT_WORTH_ITS_TIME), False),
        (0.5, untried("keep-result", upper_bound=1.01), False),
        (None, untried("keep-result"), True),  # nobody knows
        (0.5, Trial(fixes=FixSet.of("keep-result"), speedup=between(0.2, 0.1, 0.4)), False),
        (0.5, Trial(fixes=FixSet.of("keep-result"), speedup=between(1.1, 0.9, 1.4)), True),
    ],
)
def test_more_time_is_worth_it_only_where_what_is_open_can_gain(
    share: float | None, trial: Trial, may: bool
) -> None:
    open_one = finding("hot-call", share, 12, fixes=["keep-result"])
    assert may_gain_more(report(open_one, trials=[trial])) is may
