"""What is handed out is what ran: patches that hold, and what becomes of those that do not."""

from __future__ import annotations

import pytest
from simulated_program import Simulated, try_all

from torchdoctor.trials.arms import FixFacts

LIKELY = {fix: FixFacts(p_helps=0.9) for fix in "abc"}
LARGE = dict.fromkeys("abc", 4.0)


def search(
    program: Simulated,
    *names: str,
    no_edit: str = "",
    budget_s: float | None = None,
    why_untried: str | None = None,
):
    """A search with patches, of which those with a fix of `no_edit` cannot be made."""

    def make_patch(fixes):
        lacking = [fix for fix in fixes if fix in no_edit]
        return f"no edit for {lacking}" if lacking else None

    return try_all(
        program,
        list(names),
        budget_s,
        make_patch=make_patch,
        why_untried=why_untried,
        facts=LIKELY,
        could_gain=LARGE,
    )


def fixes_of(recommendation) -> set[str]:
    return {fix.fix for fix in recommendation.fixes}


def problems(results) -> dict[str, str]:
    rejected = results.recommendation.rejected_patches
    return {" + ".join(sorted(patch.fixes)): patch.problem for patch in rejected}


def test_what_is_recommended_is_a_patch_that_ran_with_its_own_figure() -> None:
    results = search(Simulated(gains={"a": 3.0, "patch": 0.8}), "a", "b")
    recommended = results.recommendation
    assert (fixes_of(recommended), recommended.handed_out) == ({"a"}, "patch")
    assert recommended.speedup.estimate == pytest.approx(2.4, rel=0.05), "at run time it is 3.0"
    assert recommended.patch_trial.speedup == recommended.speedup
    assert recommended.patch_trial.pairs >= 2 and results.source_patch.fixes == ["a"]


def test_a_set_is_handed_out_as_the_patch_of_all_its_members() -> None:
    results = search(Simulated(gains={"a": 2.0, "b": 1.6}), "a", "b", "c")
    assert fixes_of(results.recommendation) == {"a", "b"} == set(results.source_patch.fixes)
    assert results.recommendation.handed_out == "patch" and not problems(results)


def test_a_patch_that_fails_is_no_patch_to_apply() -> None:
    """The demo's patch died of UnboundLocalError, and the screen said: apply it."""
    results = search(Simulated(gains={"a": 3.0}, ends={"patch": "failed"}), "a")
    assert problems(results) == {"a": "failed"} and results.source_patch is None
    [rejected] = results.recommendation.rejected_patches
    assert rejected.why is not None and rejected.why.fact == "message"
    assert results.recommendation.handed_out == "by-hand", "at run time it was proven"
    assert results.recommendation.pairs >= 2 and results.recommendation.patch_trial is None


def test_a_patch_that_is_slower_is_not_recommended_in_any_form() -> None:
    """1.58x of compiling was recommended, and the patch that was handed out had 0.87x."""
    results = search(Simulated(gains={"a": 1.6, "b": 1.4, "patch": 0.5}), "a", "b")
    assert not results.recommendation.fixes and results.source_patch is None
    assert set(problems(results).values()) == {"slower"}


def test_a_member_without_an_edit_is_made_by_hand_beside_the_patch_of_the_others() -> None:
    results = search(Simulated(gains={"a": 2.0, "b": 1.8}), "a", "b", no_edit="b")
    assert fixes_of(results.recommendation) == {"a"}
    assert results.recommendation.handed_out == "patch"
    assert problems(results)["b"] == "lacks-edit"
    [by_hand] = [row for row in results.trials if row.fixes.only == "b"]
    assert by_hand.verdict == "faster" and not by_hand.patched


def test_where_nothing_can_be_edited_fixes_are_proven_at_run_time() -> None:
    results = search(Simulated(gains={"a": 2.0, "b": 1.6}), "a", "b", no_edit="ab")
    assert fixes_of(results.recommendation) == {"a", "b"}
    assert results.recommendation.handed_out == "by-hand" and results.source_patch is None


def test_without_an_overlay_fixes_are_proven_at_run_time_and_no_patch_counts_as_tried() -> None:
    """ "No patch could be made" was said of edits that exist and could not be launched here."""
    program = Simulated(gains={"a": 2.0, "b": 1.6})
    results = search(program, "a", "b", no_edit="b", why_untried="no overlay")
    assert fixes_of(results.recommendation) == {"a", "b"}
    assert results.recommendation.handed_out == "by-hand" and results.source_patch is None
    assert results.recommendation.patch_trial is None
    assert (problems(results)["a"], problems(results)["b"]) == ("not-tried", "lacks-edit")


def test_a_search_that_ends_early_hands_out_nothing_that_was_not_proven() -> None:
    proven = 0
    for number in range(3, 16):
        results = search(Simulated(gains={"a": 3.0}, interrupt_at=number), "a")
        recommended, handed_out = results.recommendation, results.recommendation.fixes
        assert bool(handed_out) == (results.source_patch is not None)
        proven += bool(handed_out)
        if results.interrupted and number > 4 and not handed_out:
            assert recommended.open_proof.fixes == {"a": {}}
            assert recommended.open_proof.further_pairs >= 1
    assert proven > 1
