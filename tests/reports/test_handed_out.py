"""What is handed out: the proof of a patch, what was rejected, and what is still open."""

from __future__ import annotations

from dataclasses import replace

import pytest
from commands import told
from samples import between, compute_bound, interrupted, loader_bound, nothing_found

from torchdoctor.queries.outcomes import is_proven, most_promising
from torchdoctor.reports import first_screen
from torchdoctor.reports.document import KeyFigures
from torchdoctor.reports.formats import document, rendered
from torchdoctor.reports.handed_out import (
    patch_commands,
    patch_run,
    problem_of_patch,
    proof,
    rejected_patches,
    rejected_sentence,
)
from torchdoctor.reports.proven import BY_HAND, RECOMMENDED
from torchdoctor.reports.trial_rows import LOOKS_FASTER, verdict_of
from torchdoctor.reports.undecided import LIKELY as LIKELY_TO_HELP
from torchdoctor.reports.undecided import SEEMS_FASTER
from torchdoctor.schema import (
    OUT_OF_TIME,
    Ending,
    FixSet,
    OpenProof,
    PatchTrial,
    Recommendation,
    RejectedPatch,
    Report,
    Trial,
    fact,
    message,
)
from torchdoctor.schema.figures import counted, duration, speedup
from torchdoctor.schema.trials import NO_TIME_LEFT

WORKERS = {"loader-workers": {"num_workers": 4}}
COMPILED = {"torch-compile": {"mode": "default"}}
ERROR = "UnboundLocalError: no model yet"
FAILED = RejectedPatch(
    fixes=WORKERS | COMPILED,
    problem="failed",
    detail=f'Traceback:\n  File "train.py", line 3\n{ERROR}\n',
)
SLOWER = RejectedPatch(
    fixes=WORKERS | {"fused-optimizer": {"fused": True}},
    problem="slower",
    speedup=between(0.8, 0.72, 0.89),
    pairs=3,
)
LACKING = RejectedPatch(
    fixes=WORKERS | {"decoded-cache": {}},
    problem="lacks-edit",
    why=fact("no-edit-for", fixes=["decoded-cache"]),
)
UNTRIED = RejectedPatch(fixes=WORKERS, problem="not-tried", detail="there was no overlay")
OPEN = OpenProof(
    fixes=WORKERS | COMPILED,
    speedup=between(3.9, 1.2, 12.0),
    pairs=1,
    further_pairs=2,
    seconds=38.0,
)
LIKELY = [
    Trial(
        fixes=FixSet.of(fix),
        choice=fact(OUT_OF_TIME),
        p_helps=0.7,
        expected=1.3,
        reason="no time",
    )
    for fix in ("cudnn-benchmark", "fused-optimizer", "persistent-workers", "tf32")
]


def with_all(rejected: list[RejectedPatch], open_proof: OpenProof | None = None) -> Report:
    """A patch that holds, and beside it everything that did not."""
    whole = loader_bound()
    recommended = replace(whole.recommendation, rejected_patches=rejected, open_proof=open_proof)
    trials = [*whole.trials, *LIKELY]
    ending = Ending(reason="time", after_s=118.0, budget_s=120.0)
    return replace(whole, recommendation=recommended, trials=trials, ending=ending)


def by_hand(rejected: list[RejectedPatch]) -> Report:
    """Fixes without a patch."""
    whole = compute_bound()
    recommended = replace(whole.recommendation, rejected_patches=rejected, open_proof=OPEN)
    return replace(whole, recommendation=recommended, trials=[*whole.trials, *LIKELY])


def looks_faster() -> Report:
    """Nothing is proven; the best set has one pair."""
    whole = with_all([SLOWER])
    trial = replace(whole.trials[0], verdict="looks-faster", pairs=1)
    recommended = Recommendation(rejected_patches=[SLOWER], open_proof=OPEN)
    return replace(whole, trials=[trial, *LIKELY], recommendation=recommended)


CASES = {
    "patch": with_all([]),
    "all": with_all([FAILED, SLOWER, LACKING], OPEN),
    "all, on a busy machine": replace(
        with_all([FAILED, SLOWER, LACKING], OPEN), beware=["The machine was very busy. " * 9] * 2
    ),
    "by hand": by_hand([LACKING]),
    "by hand, rejected": by_hand([FAILED, LACKING]),
    "looks faster": looks_faster(),
    "interrupted": replace(looks_faster(), interrupted=True),
}


def titles(report: Report) -> list[str]:
    blocks = [block for part in first_screen.screen(report, "") for block in part.blocks]
    return [block.title for block in blocks if isinstance(block, KeyFigures)]


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", CASES)
def test_all_that_is_told_of_patches_fits_on_one_screen(name: str, width: int) -> None:
    text = rendered(CASES[name], "terminal", full=False, width=width)
    assert len(text.splitlines()) <= 40, text


@pytest.mark.parametrize(
    ("interval", "pairs", "proven"),
    [
        (between(9.0, 8.0, 10.0), 1, False),
        (between(1.4, 1.3, 1.5), 2, False),
        (between(2.0, 1.5, 2.6), 2, True),
        (between(1.1, 1.01, 1.2), 3, True),
        (between(1.1, 0.99, 1.2), 9, False),
        (None, 3, False),
    ],
)
def test_a_gain_is_proven_by_three_pairs_or_by_two_of_a_large_one(interval, pairs, proven) -> None:
    assert is_proven(interval, pairs) is proven


def test_one_pair_is_never_faster_whatever_an_older_report_calls_it() -> None:
    trial = Trial(fixes=FixSet.of("x"), speedup=between(9.0, 8.0, 10.0), verdict="faster", pairs=1)
    new = replace(trial, verdict="looks-faster")
    assert verdict_of(trial) == verdict_of(new) != verdict_of(replace(trial, pairs=3))
    assert verdict_of(replace(trial, pairs=3)) == "faster"
    assert most_promising([new]) is new, "it is open"
    assert most_promising([replace(trial, pairs=3)]) is None, "it is decided"


def test_what_was_slower_so_far_promises_nothing() -> None:
    """The screen named "most promising" what was 0.87x as fast in two pairs."""
    slower = between(0.87, 0.55, 1.37)
    trial = Trial(fixes=FixSet.of("x"), speedup=slower, verdict="unclear", pairs=2, expected=1.2)
    assert most_promising([trial]) is None
    assert most_promising([replace(trial, speedup=between(1.1, 0.7, 1.7))]) is not None


def test_what_is_by_hand_is_never_to_be_applied() -> None:
    for report in (CASES["by hand"], CASES["by hand, rejected"]):
        assert titles(report)[0] == BY_HAND
        assert patch_commands(report, report.recommendation.fixes) == []
        for form in ("terminal", "markdown", "html"):
            assert not any("--apply" in command for command in told(rendered(report, form)))
        assert "torch.autocast" in rendered(report, "terminal", full=False), "its code is shown"


def test_what_looks_faster_is_told_with_what_its_proof_needs() -> None:
    report = CASES["looks faster"]
    assert titles(report) == [f"{SEEMS_FASTER}:"]
    recommended = replace(report.recommendation, rejected_patches=[])
    assert LIKELY_TO_HELP in titles(replace(report, recommendation=recommended))
    text = " ".join(rendered(report, "terminal", full=False).split())
    assert f"{OPEN.further_pairs} more " in text and " 38 s" in text and "--budget 3m" in text
    assert " faster " not in text.replace(LOOKS_FASTER, "")
    stopped = rendered(CASES["interrupted"], "terminal", full=False)
    assert "--budget 3m" not in stopped, "an interrupted run did not use its budget"


def test_what_is_likely_is_what_time_was_short_for() -> None:
    unlikely = [replace(trial, p_helps=0.1) for trial in LIKELY]
    refused = [replace(trial, choice=fact("refused")) for trial in LIKELY]
    report = CASES["patch"]
    assert LIKELY_TO_HELP in titles(report)
    for trials in (unlikely, refused, []):
        assert LIKELY_TO_HELP not in titles(replace(report, trials=trials))


def test_each_rejected_patch_says_what_became_of_it() -> None:
    assert ERROR in rejected_sentence(FAILED)
    slower = rejected_sentence(SLOWER)
    assert speedup(SLOWER.speedup) in slower and counted(3, "pair") in slower
    assert rejected_sentence(LACKING).count("decoded-cache") == 2, "the set, and which lacks it"
    assert UNTRIED.detail in rejected_sentence(UNTRIED)
    text = " ".join(rendered(CASES["all"], "terminal").split())
    for rejected in (FAILED, SLOWER, LACKING):
        assert rejected_sentence(rejected) in text, "the details have all of them"


def test_an_edit_is_a_problem_where_its_patch_was_rejected() -> None:
    report = with_all([FAILED, SLOWER, LACKING])
    assert problem_of_patch(report, FAILED.fixes) is FAILED
    assert problem_of_patch(report, FAILED.fixes | {"tf32": {}}) is FAILED, "it fails all the same"
    assert problem_of_patch(report, SLOWER.fixes) is SLOWER
    assert problem_of_patch(report, SLOWER.fixes | {"tf32": {}}) is None, "that may be faster"
    assert problem_of_patch(report, LACKING.fixes) is None
    assert problem_of_patch(by_hand([UNTRIED]), UNTRIED.fixes) is None, "nothing speaks against it"
    assert problem_of_patch(report, WORKERS) is None, "the recommended patch holds"
    assert problem_of_patch(report, {"loader-workers": {"num_workers": 2}} | COMPILED) is None
    held = RejectedPatch(fixes=WORKERS, problem="changes-training")
    assert problem_of_patch(with_all([held]), WORKERS | {"tf32": {}}) is held
    assert problem_of_patch(with_all([held]), WORKERS) is None, "just that set ran and gained"


OLDER = [
    (PatchTrial(why=message("UnboundLocalError: model"), numerics="not-comparable"), "failed"),
    (PatchTrial(speedup=between(0.5, 0.4, 0.6), numerics="identical", pairs=3), "slower"),
    (PatchTrial(speedup=between(2.0, 1.8, 2.2), numerics="changed", pairs=3), "changes-training"),
    (PatchTrial(speedup=between(2.0, 1.8, 2.2), numerics="identical", pairs=3), None),
    (PatchTrial(why=message("no overlay here")), None),
    (PatchTrial(why=fact(NO_TIME_LEFT), numerics="not-comparable"), None),
]


@pytest.mark.parametrize(("trial", "problem"), OLDER)
def test_an_older_report_rejects_a_patch_by_how_it_ran(trial, problem) -> None:
    whole = loader_bound()
    recommended = replace(whole.recommendation, patch_trial=trial, handed_out=None)
    report = replace(whole, recommendation=recommended)
    assert [rejected.problem for rejected in rejected_patches(report)] == [problem] * bool(problem)
    found = problem_of_patch(report, WORKERS)
    assert (found.problem if found is not None else None) == problem
    assert titles(report)[0] == (BY_HAND if problem else RECOMMENDED)
    applies = any("--apply" in command for command in told(rendered(report, "terminal")))
    assert applies is (problem is None and trial.speedup is not None)


def test_the_proof_of_a_single_edit_is_that_of_the_same_settings() -> None:
    whole = loader_bound()
    [fix] = whole.recommendation.fixes
    ran = replace(whole.trials[0], patched=True)  # two workers
    report = replace(whole, recommendation=Recommendation(), trials=[ran])
    two = replace(fix, settings={"num_workers": 2})
    assert patch_run(report, {fix.fix: {"num_workers": 2}}) is not None
    assert patch_run(report, WORKERS) is None
    assert "1.83x" in proof(report, [two])[0]
    assert "1.83x" not in proof(report, [fix])[0]


def test_a_search_that_ended_early_says_the_time_that_it_used() -> None:
    ending = Ending(reason="decided", after_s=52.0, budget_s=120.0)
    text = rendered(replace(loader_bound(), ending=ending), "terminal", full=False)
    [ended] = [line for line in text.splitlines() if duration(ending.after_s) in line]
    assert duration(ending.budget_s) in ended


def test_nothing_to_hand_out_says_nothing_of_patches() -> None:
    for report in (nothing_found(), interrupted()):
        shown = document(report).screen
        assert "patch" not in str(shown).lower()
