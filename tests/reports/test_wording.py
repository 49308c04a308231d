"""Figures and sentences: sensible digits, and never "faster" without proof."""

import io
import os
import sys
from dataclasses import replace

import pytest
from samples import (
    between,
    diagnosed_only,
    interrupted,
    loader_bound,
    nothing_found,
    refused_heavy,
)

from torchdoctor.reports import (
    could_help,
    own_code,
    proven,
    steps_found,
    terminal,
    undecided,
    wording,
)
from torchdoctor.reports.formats import document, rendered
from torchdoctor.reports.trial_rows import training
from torchdoctor.reports.verdict import with_sentences
from torchdoctor.reports.wording import program_failed
from torchdoctor.schema import (
    Diagnosis,
    Environment,
    Evidence,
    Finding,
    FixSet,
    Interval,
    Location,
    PatchTrial,
    ProgramFailure,
    Quote,
    Recommendation,
    RecommendedFix,
    Report,
    Trial,
    Verdict,
    WorkloadRecord,
    fact,
    figures,
)
from torchdoctor.steps import evidence


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 %"), (0.0001, "<0.1 %"), (0.052, "5.2 %"), (0.78, "78 %"), (None, "not measured")],
)
def test_percent(value, text) -> None:
    assert figures.percent(value) == text


def test_a_share_just_below_its_threshold_does_not_look_equal_to_it() -> None:
    assert figures.percent(0.1996, against=0.2) != figures.percent(0.2)


@pytest.mark.parametrize(
    ("value", "text"), [(1.004, "1.004"), (1.0, "1.00"), (1.83, "1.83"), (12.34, "12.3")]
)
def test_ratio_of_a_little_gain_does_not_round_to_none(value, text) -> None:
    assert figures.ratio(value) == text


def test_long_paths_keep_their_end() -> None:
    where = figures.place(Location(file="/a/" + "deep/" * 20 + "train.py", line=41), width=30)
    assert where.startswith("...")
    assert where.endswith("train.py:41")
    assert len(where) <= 30


def first_screen(report: Report) -> str:
    return " ".join(rendered(report, "terminal", full=False).split())


def answer(report: Report) -> str:
    """The first screen above its table of trials."""
    return first_screen(report).partition(" tried ")[0]


@pytest.mark.parametrize("interval", [between(1.2, 0.99, 1.45), between(0.9, 0.85, 0.95)])
def test_a_gain_that_is_not_proven_is_never_called_faster(interval) -> None:
    whole = loader_bound()
    patch = PatchTrial(speedup=interval, numerics="identical", pairs=6)
    recommended = replace(whole.recommendation, speedup=interval, patch_trial=patch)
    shown = answer(replace(whole, recommendation=recommended))
    assert "faster" not in shown and undecided.UNPROVEN in shown
    trial = replace(whole.trials[0], speedup=interval, verdict="faster")
    alone = replace(whole, trials=[trial], recommendation=Recommendation())
    assert "faster" not in first_screen(alone).lower()


def test_a_set_that_nobody_recommends_is_not_told_as_an_answer() -> None:
    """The screen called it faster by 21.5x, and `patch` said that no fix is recommended."""
    alone = interrupted()
    assert f"{proven.FASTER_ALONE} 3.10x" in answer(alone)
    both = replace(alone.trials[0], fixes=FixSet({"loader-workers": {}, "cpu-threads": {}}))
    shown = answer(replace(alone, trials=[both]))
    assert proven.NOT_RECOMMENDED in shown and proven.FASTER_ALONE not in shown


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_an_impossible_speedup_says_what_of_it_can_be_the_fixs(form) -> None:
    whole = loader_bound()
    best = whole.recommendation.fixes[:1]
    recommended = replace(
        whole.recommendation, fixes=best, speedup=between(5.55, 2.99, 10.3), at_most=4.43
    )
    text = " ".join(rendered(replace(whole, recommendation=recommended), form).split())
    said = wording.beyond_its_part(recommended)
    assert "4.43x" in said and "5.55x" in said and text.count(said) == 2
    assert "4.43x at most" not in text, "what is measured wins"
    several = replace(recommended, fixes=best * 2)
    text = " ".join(rendered(replace(whole, recommendation=several), form).split())
    assert said not in text and wording.beyond_its_part(several) in text, "they are not one"


def test_an_open_speedup_counts_no_more_than_it_can_be() -> None:
    whole = loader_bound()
    open_trial = replace(
        whole.trials[0], verdict="unclear", speedup=between(1.21, 0.5, 3.0), at_most=1.05, pairs=1
    )
    other = replace(
        open_trial, fixes=FixSet.of("other"), at_most=None, speedup=between(1.1, 0.9, 1.3), pairs=2
    )
    both = replace(whole, trials=[open_trial, other], recommendation=Recommendation())
    assert "Most promising: other" in answer(both)


def test_what_looked_faster_and_changes_training_is_not_promising() -> None:
    whole = loader_bound()
    changed = replace(
        whole.trials[0], verdict="unclear", speedup=between(1.26, 0.01, 99.0), numerics="changed"
    )
    report = replace(whole, trials=[changed], recommendation=Recommendation())
    assert "promising" not in answer(report)
    assert " changed " in first_screen(report)


def test_a_recommended_set_says_which_settings_it_is_of() -> None:
    """ "With loader-workers": there were four, and none is what was faster."""
    whole = loader_bound()
    fixes = [
        RecommendedFix(fix="loader-workers", settings={"num_workers": 0}),
        RecommendedFix(fix="torch-compile", settings={"mode": "default", "dynamic": False}),
    ]
    report = replace(whole, recommendation=replace(whole.recommendation, fixes=fixes))
    assert "(num_workers=0)" in answer(report)
    assert "(mode=default, dynamic=False)" in answer(report)


def test_what_could_not_be_tried_at_all_is_said_to_be_not_measured() -> None:
    offered = RecommendedFix(fix="cpu-threads", settings={}, standing="offered")
    recommended = Recommendation(also_offered=[offered])
    report = replace(loader_bound(), trials=[], recommendation=recommended)
    assert could_help.COULD_HELP in answer(report)
    assert wording.untried(report) in answer(report)
    ended = replace(report, no_trials_reason="The budget was used up.")
    assert ended.no_trials_reason in answer(ended)
    details = document(ended).details
    assert any(could_help.COULD_HELP.lower() == section.title.lower() for section in details)


TORCHRUN = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 9, in <module>
[rank0]: ValueError: bad label
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
====================
  exitcode  : 1 (pid: 12)
====================
"""


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (TORCHRUN, " at train.py:9: [rank0]: ValueError: bad label"),
        ("Traceback:\nmy.lib.OwnError\nwarning: leaked semaphores\n", ": my.lib.OwnError"),
        ("epoch 1\nplanned end\n", ": planned end"),
        ("", ""),
    ],
)
def test_a_failed_program_is_said_with_the_line_that_tells_why(output: str, why: str) -> None:
    failed = ProgramFailure(exit_code=1, steps=40, output_tail=output)
    open_trial = replace(loader_bound().trials[0], verdict="unclear")
    report = replace(
        loader_bound(), trials=[open_trial], recommendation=Recommendation(), ending=None
    )
    assert undecided.more_time(report) != []
    report = replace(report, failure=failed)
    assert undecided.more_time(report) == [], "it fails in any time"
    said = wording.failure(report)
    assert " 40 " in said and "exit code 1" in said and said.endswith(why)
    assert (said.count(": ") == 1) is (why == ""), "no line is announced that there is not"
    for text in (
        rendered(report, "terminal"),
        rendered(report, "markdown"),
        rendered(report, "html"),
    ):
        top = " ".join(text.partition("Why")[0].split()).replace("\\", "")
        assert said in top
    assert output.strip() in str(program_failed(failed))


def test_a_fix_that_changes_training_is_not_put_forward() -> None:
    whole = loader_bound()
    trial = replace(whole.trials[0], numerics="changed")
    report = replace(whole, trials=[trial], recommendation=Recommendation())
    assert trial.fixes.first not in answer(report)


def test_what_the_program_wrote_cannot_steer_the_terminal() -> None:
    report = replace(refused_heavy(), doubts=["a\x1b[2Jb"], reproduce=["x\x1b[2J"])
    assert "\x1b" not in rendered(report, "terminal")


def test_a_narrow_report_cuts_no_figure() -> None:
    text = rendered(loader_bound(), "terminal", width=60)
    assert "3.10x (2.90-3.31)" in text
    assert "…" not in text


def test_print_report_survives_an_encoding_that_lacks_a_character(monkeypatch) -> None:
    report = replace(loader_bound(), doubts=["naïve 模型"])
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setitem(os.environ, "NO_COLOR", "1")
    terminal.show(document(report), details=True)
    sys.stdout.flush()
    assert b"na?ve ??" in raw.getvalue()
    assert b"\x1b" not in raw.getvalue()


@pytest.mark.parametrize("columns", ["60", "200", "0"])
def test_a_piped_report_is_plain_text(columns, monkeypatch, capsys) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", columns)
    terminal.show(document(loader_bound()))
    shown = rendered(loader_bound(), "terminal", full=False, width=min(int(columns) or 100, 100))
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_every_format_says_that_the_run_was_interrupted(form) -> None:
    assert "interrupted" in rendered(interrupted(), form)
    assert "interrupted" not in rendered(loader_bound(), form)


def test_the_figures_of_a_step_multiply_up() -> None:
    """The headline's step time, batch and throughput are of the same launches."""
    report = loader_bound()
    time = report.baseline.step_time_s
    assert time is not None and report.baseline.samples_per_s is not None
    text = wording.step_time(report)
    batch = report.baseline.samples_per_s * time.deciding
    assert f"{batch:.0f} samples a step" in text
    assert f"{len(report.baseline.launches_s)} timed launches" in text
    assert report.steps is not None
    assert f"{figures.seconds(report.steps.mean_s)} on average" in wording.shares_of(report)


def test_without_timed_launches_the_observed_one_is_named() -> None:
    report = diagnosed_only()
    assert "observed" in wording.step_time(report) and "timed" not in wording.step_time(report)
    assert wording.shares_of(report) == ""


def test_how_steps_were_found_is_a_sentence_with_paths_as_the_user_knows_them() -> None:
    report = diagnosed_only()
    assert report.steps is not None
    how = f"there is no DataLoader, so it is one step of SGD at {report.workload.cwd}/a.py:5."
    report = replace(report, steps=replace(report.steps, how_found=how))
    found = wording.how_steps_were_found(report)
    assert found[0].isupper()
    assert found.lower() == how.replace(f"{report.workload.cwd}/", "").lower()
    assert found in " ".join(rendered(report, "terminal").split())


def test_a_gain_whose_training_is_unknown_is_not_recommended() -> None:
    unknown = Trial(
        fixes=FixSet.of("loader-workers"),
        verdict="faster",
        numerics="not-comparable",
        speedup=between(2.27, 1.48, 3.48),
        pairs=4,
    )
    shown = answer(replace(nothing_found(), trials=[unknown]))
    assert training(unknown.numerics) in shown
    assert proven.NOT_RECOMMENDED in shown and proven.RECOMMENDED not in shown


def test_a_cause_that_names_its_places_gets_no_other() -> None:
    report = diagnosed_only()
    sentence = "Python takes 58 % of the step: decode at image.py:235."
    where = Location(file="image.py", line=235)
    named = Evidence(fact="python", location=where, sentence=sentence)
    proof = Quote(check="made-up", facts=["python"])
    diagnosis = Diagnosis(
        bottleneck="other",
        detail="made-up",
        verdict=Verdict(kind="finding", place=where, proof=proof),
        findings=[Finding(check="made-up", evidence=[named], location=where)],
    )
    shown = first_screen(replace(report, diagnosis=diagnosis))
    assert sentence in shown and f"{sentence[:-1]} (" not in shown


def test_the_first_screen_says_what_weakens_the_diagnosis() -> None:
    """Four steps, or a machine that others keep busy, gave as firm a sentence as any."""
    report = diagnosed_only()
    assert "Beware" not in first_screen(report)
    doubts = ["Only 4 steps could be measured: the step time is only a first estimate.", "A.", "B."]
    shown = first_screen(replace(report, beware=doubts))
    assert f"Beware: {doubts[0]}" in shown
    assert "Beware: A." in shown and "B." not in shown


def test_one_pair_is_said_to_be_one() -> None:
    """The noise of one pair of launches is larger than most gains."""

    def unclear(fix: str, pairs: int, estimate: float, low: float, high: float = 9.9) -> Trial:
        interval = Interval(estimate=estimate, low=low, high=high)
        return Trial(fixes=FixSet.of(fix), verdict="unclear", pairs=pairs, speedup=interval)

    once = unclear("mixed-precision", 1, 2.55, 0.9)
    often = unclear("loader-workers", 7, 1.57, 0.95, 2.6)
    report = Report(
        workload=WorkloadRecord(command=["train.py"], cwd="/w"),
        environment=Environment(),
        diagnosis=Diagnosis(bottleneck="cpu"),
    )
    for trials, best in (([often], often), ([once, often], once)):
        shown = answer(replace(report, trials=trials))
        assert f"{figures.speedup(best.speedup)} in {figures.counted(best.pairs, 'pair')} " in shown
    # Three pairs on a starved machine: 17.9x stood in the headline.
    wide = unclear("cpu-threads", 3, 17.9, 0.11, 3010.0)
    assert "17.9" not in answer(replace(report, trials=[wide]))


def test_a_budget_that_was_used_up_is_the_reason_and_not_the_refusals() -> None:
    """The headline was "43 refused", where nothing that may be tried had any time."""
    refused = Trial(
        fixes=FixSet.of("pin-memory"), verdict="refused", reason="No GPU.", numerics="identical"
    )
    reason = "Observing left 2 s of the budget of 120 s, too little for a pair of launches."
    report = replace(nothing_found(), trials=[refused])
    headline, _, refusals = first_screen(report).partition("Not measured: ")
    assert refusals.startswith("1 ") and "refused" not in headline
    assert reason in answer(replace(report, no_trials_reason=reason))


@pytest.mark.parametrize(
    ("interval", "pairs", "text"),
    [
        (between(0.99, 0.17, 5.66), 4, "0.99x (0.17-5.66), 4 pairs"),
        (between(0.48, 0.02, 11.2), 0, "0.48x (0.02-11.2)"),
        (between(1.83, 1.79, 1.88), 6, "1.83x (1.79-1.88)"),
    ],
)
def test_an_interval_that_exists_is_shown_however_wide(interval, pairs, text) -> None:
    assert figures.speedup(interval, pairs) == text
    report = loader_bound()
    trial = replace(report.trials[2], speedup=interval, pairs=pairs, verdict="unclear")
    report = replace(report, trials=[trial])
    for form in ("markdown", "terminal"):
        assert text in rendered(report, form)


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_every_form_says_that_the_steps_time_is_a_median(form) -> None:
    said = wording.step_time(loader_bound())
    assert said.startswith("Median") and "412 ms" in said
    assert said in " ".join(rendered(loader_bound(), form).split())


def test_one_pair_recommends_nothing_and_a_busy_machine_is_said_beside_the_figure() -> None:
    whole = loader_bound()
    assert proven.RECOMMENDED in answer(whole) and "busy" not in answer(whole)
    once = replace(whole, recommendation=replace(whole.recommendation, pairs=1, patch_trial=None))
    sensors = replace(whole.sensors, other_load_cpus=whole.environment.usable_cpus)
    shown = answer(replace(once, sensors=sensors))
    assert undecided.SEEMS_FASTER in shown and proven.RECOMMENDED not in shown
    assert figures.counted(1, "pair") in shown and "busy" in shown
    assert "1 pairs" not in rendered(once, "terminal")


def test_a_line_whose_cost_a_recommended_fix_ends_has_a_cure() -> None:
    """ "No cure is known for this line" stood below the cure that had been measured."""
    whole = loader_bound()
    line = Location(file="train.py", line=43)
    hot = Finding(check="hot-call", share_of_step=0.88, location=line, severity="moderate")
    told = replace(whole.diagnosis, findings=[*whole.diagnosis.findings, hot])
    cured = replace(whole, diagnosis=told)
    assert own_code.blocks(cured) == []
    assert own_code.blocks(replace(cured, recommendation=Recommendation())) != []


STEP = fact(
    "optimizer-beside-loaders",
    location=Location(file="/w/train.py", line=5),
    name=None,
    learned_by="batch",
    counts={"batch": 1, "computed": 2, "optimizer": 1},
    asked_for=None,
    processes=2,
)


def test_how_steps_were_found_is_made_of_data() -> None:
    report = diagnosed_only()
    assert report.steps is not None
    workload = replace(report.workload, cwd="/w")
    report = replace(report, steps=replace(report.steps, evidence=STEP), workload=workload)
    said = wording.how_steps_were_found(with_sentences(report))
    assert said.endswith(".") and "{" not in said and "[" not in said
    for told in ("at train.py:5", "1 batch", "2 batches", "1 optimizer step", "each of 2"):
        assert told in said


@pytest.mark.parametrize("kind", evidence.KINDS)
def test_each_kind_of_step_is_told(kind: str) -> None:
    assert kind in steps_found.SENTENCES
