"""Figures and sentences: sensible digits, and never "faster" without proof."""

import dataclasses
import io
import os
import shlex
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

from torchdoctor.reports import content, headline, html, markdown, terminal, wording
from torchdoctor.reports.failure import program_failed
from torchdoctor.words import (
    Diagnosis,
    Environment,
    Interval,
    Location,
    ProgramFailure,
    Recommendation,
    RecommendedFix,
    Report,
    Trial,
    WorkloadRecord,
    figures,
)


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


@pytest.mark.parametrize("interval", [between(1.2, 0.99, 1.45), between(0.9, 0.85, 0.95)])
def test_a_gain_that_is_not_proven_is_never_called_faster(interval) -> None:
    whole = loader_bound()
    recommended = dataclasses.replace(whole.recommendation, speedup=interval)
    assert "faster" not in headline.gain(dataclasses.replace(whole, recommendation=recommended))
    trial = dataclasses.replace(whole.trials[0], speedup=interval, verdict="faster")
    alone = dataclasses.replace(whole, trials=[trial], recommendation=Recommendation())
    assert "runs" not in headline.gain(alone)
    assert "\nFaster" not in terminal.render(alone)


def test_an_impossible_speedup_says_what_of_it_can_be_the_fixs() -> None:
    whole = loader_bound()
    best = whole.recommendation.fixes[:1]
    recommended = dataclasses.replace(
        whole.recommendation, fixes=best, speedup=between(5.55, 2.99, 10.3), at_most=4.43
    )
    report = dataclasses.replace(whole, recommendation=recommended)
    for text in (terminal.render(report), markdown.render(report), html.render(report)):
        assert " ".join(text.split()).count("of which 4.43x at most can be the fix") == 2, text
    several = dataclasses.replace(recommended, fixes=whole.recommendation.fixes[:1] * 2)
    assert "the fixes'" in headline.gain(dataclasses.replace(whole, recommendation=several))


def test_an_open_speedup_that_cannot_be_is_not_the_headline() -> None:
    whole = loader_bound()
    open_ = dataclasses.replace(
        whole.trials[0], verdict="unclear", speedup=between(1.21, 0.01, 99.0), at_most=1.05, pairs=1
    )
    alone = dataclasses.replace(whole, trials=[open_], recommendation=Recommendation())
    assert headline.gain(alone) == "No fix is decided yet. More time may decide it (--budget)."
    other = dataclasses.replace(open_, fix="other", at_most=None, speedup=between(1.1, 0.9, 1.3))
    both = dataclasses.replace(alone, trials=[open_, other])
    assert "other" in headline.gain(both) and open_.fix not in headline.gain(both)


def test_what_looked_faster_and_changes_training_is_not_said_to_have_looked_slow() -> None:
    whole = loader_bound()
    changed = dataclasses.replace(
        whole.trials[0], verdict="unclear", speedup=between(1.26, 0.01, 99.0), numerics="changed"
    )
    report = dataclasses.replace(whole, trials=[changed], recommendation=Recommendation())
    assert headline.gain(report).endswith("looked 1.26x faster, but training changes with it.")


def test_a_set_in_the_headline_says_which_setting_it_is_of() -> None:
    """ "With loader-workers": there were four, and none is what was faster."""
    whole = loader_bound()
    fixes = [
        RecommendedFix(fix="loader-workers", settings={"num_workers": 0}),
        RecommendedFix(fix="torch-compile", settings={"mode": "default", "dynamic": False}),
    ]
    recommended = dataclasses.replace(whole.recommendation, fixes=fixes)
    said = headline.gain(dataclasses.replace(whole, recommendation=recommended))
    assert said.startswith("With loader-workers (num_workers=0) and torch-compile it runs")


def test_what_could_not_be_tried_at_all_is_not_said_to_be_worth_doing() -> None:
    whole = loader_bound()
    one = RecommendedFix(fix="cpu-threads", settings={}, standing="offered")
    recommended = Recommendation(also_offered=[one])
    report = dataclasses.replace(whole, trials=[], recommendation=recommended)
    assert [title for title, _ in content.offered(report)] == ["Worth doing, not measured"]
    assert headline.gain(report).endswith("what applies here is shown as code, not run.")
    ended = dataclasses.replace(report, no_trials_reason="The budget was used up.")
    assert [title for title, _ in content.offered(ended)] == ["What could help, not tried"]


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
    ("output", "shown"),
    [
        (TORCHRUN, "It says: [rank0]: ValueError: bad label"),
        ("Traceback:\nmy.lib.OwnError\nwarning: leaked semaphores\n", "It says: my.lib.OwnError"),
        ("epoch 1\nplanned end\n", "It says: planned end"),
        ("", "the report is of the steps before."),
    ],
)
def test_a_failed_program_is_said_with_the_line_that_tells_why(output: str, shown: str) -> None:
    failed = ProgramFailure(exit_code=1, steps=40, output_tail=output)
    report = dataclasses.replace(loader_bound(), failure=failed)
    for text in (terminal.render(report), markdown.render(report), html.render(report)):
        top = " ".join(text.partition("Why")[0].split()).replace("\\", "")
        assert shown in top and "failed after 40 training steps (exit code 1)" in top
    assert output.strip() in str(program_failed(failed))


def test_a_fix_that_changes_training_is_not_put_forward() -> None:
    whole = loader_bound()
    trial = dataclasses.replace(whole.trials[0], numerics="changed")
    report = dataclasses.replace(whole, trials=[trial], recommendation=Recommendation())
    assert trial.fix not in headline.gain(report)


def test_a_wrapped_command_means_the_same_to_a_shell() -> None:
    command = "torchdoctor run -- python -m stream --path 'a b c d e f g h i' --name \"x y\""
    lines = figures.shell_lines(command, 30)
    assert len(lines) > 2
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)


def test_what_the_program_wrote_cannot_steer_the_terminal() -> None:
    report = dataclasses.replace(refused_heavy(), doubts=["a\x1b[2Jb"], reproduce=["x\x1b[2J"])
    assert "\x1b" not in terminal.render(report)


def test_a_narrow_report_cuts_no_figure() -> None:
    text = terminal.render(loader_bound(), 60)
    assert "3.10x (2.90-3.31)" in text
    assert "…" not in text


def test_print_report_survives_an_encoding_that_lacks_a_character(monkeypatch) -> None:
    report = dataclasses.replace(loader_bound(), doubts=["naïve 模型"])
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setitem(os.environ, "NO_COLOR", "1")
    terminal.print_report(report)
    sys.stdout.flush()
    assert b"na?ve ??" in raw.getvalue()
    assert b"\x1b" not in raw.getvalue()


@pytest.mark.parametrize("columns", ["60", "200"])
def test_a_piped_report_is_plain_text(columns, monkeypatch, capsys) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", columns)
    terminal.print_report(loader_bound())
    assert capsys.readouterr().out == terminal.render(loader_bound(), min(int(columns), 80))


@pytest.mark.parametrize("form", [terminal, markdown, html])
def test_every_format_says_that_the_run_was_interrupted(form) -> None:
    assert "interrupted: this is what" in " ".join(form.render(interrupted()).split())
    assert "interrupted: this is what" not in " ".join(form.render(loader_bound()).split())


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
    assert "of the observed launch" in wording.step_time(report)
    assert wording.shares_of(report) == ""


def test_how_steps_were_found_is_a_sentence_with_paths_as_the_user_knows_them() -> None:
    report = diagnosed_only()
    assert report.steps is not None
    how = f"there is no DataLoader, so it is one step of SGD at {report.workload.cwd}/a.py:5."
    report = dataclasses.replace(report, steps=dataclasses.replace(report.steps, how_found=how))
    found = wording.how_steps_were_found(report)
    assert found == "There is no DataLoader, so it is one step of SGD at a.py:5."
    assert found in " ".join(terminal.render(report).split())


def test_a_gain_whose_training_is_unknown_is_not_sold_in_the_headline() -> None:
    """The table says "not recommended": the first sentence must not say otherwise."""
    unknown = Trial(
        fix="loader-workers",
        verdict="faster",
        numerics="not-comparable",
        speedup=between(2.27, 1.48, 3.48),
        pairs=4,
    )
    said = headline.gain(dataclasses.replace(nothing_found(), trials=[unknown]))
    assert "not known yet whether training stays the same" in said
    assert "not recommended" in said
    assert not said.startswith("With")


def test_the_headline_says_what_the_diagnosis_rests_on() -> None:
    """Four steps, or a machine that others keep busy, gave as firm a sentence as any."""
    report = diagnosed_only()
    steps, sensors = report.steps, report.sensors
    assert steps is not None and headline.weakened(report) == ""
    few = replace(report, steps=replace(steps, steps=4))
    assert headline.weakened(few) == "Beware: 4 steps alone were measured."
    assert headline.weakened(few) in headline.verdict(few)
    busy = replace(
        few,
        sensors=replace(sensors, other_load_cpus=1.5),
        environment=replace(few.environment, usable_cpus=2.0),
    )
    both = "4 steps alone were measured and other programs kept 1.5 of 2 usable CPUs busy"
    assert headline.weakened(busy) == f"Beware: {both}."


def test_one_pair_is_no_headline() -> None:
    """The noise of one pair of launches is larger than most gains."""

    def unclear(fix: str, pairs: int, estimate: float, low: float, high: float = 9.9) -> Trial:
        found = Interval(estimate=estimate, low=low, high=high)
        return Trial(fix=fix, verdict="unclear", pairs=pairs, speedup=found, numerics="identical")

    once = unclear("mixed-precision", 1, 2.55, 0.9)
    often = unclear("loader-workers", 7, 1.57, 0.95, 2.6)
    report = Report(
        workload=WorkloadRecord(command=["train.py"], cwd="/w"),
        environment=Environment(),
        diagnosis=Diagnosis(bottleneck="cpu"),
    )
    said = headline.gain(replace(report, trials=[once, often]))
    assert "loader-workers looked 1.57x faster in 7 pairs" in said
    assert "2.55" not in headline.gain(replace(report, trials=[once]))
    # Three pairs on a starved machine: 17.9x stood in the headline.
    wide = unclear("cpu-threads", 3, 17.9, 0.11, 3010.0)
    said = headline.gain(replace(report, trials=[wide]))
    assert "17.9" not in said and "anywhere from 0.11x to 3010x after 3 pairs" in said


def test_a_budget_that_was_used_up_is_the_reason_and_not_the_refusals() -> None:
    """The headline was "43 refused", where nothing that may be tried had any time."""
    refused = Trial(fix="pin-memory", verdict="refused", reason="No GPU.", numerics="identical")
    reason = "The budget of 120 s was used up by observing the program."
    report = replace(nothing_found(), trials=[refused])
    assert "1 refused" in headline.gain(report)
    assert reason in headline.gain(replace(report, no_trials_reason=reason))


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
    for form in (markdown, terminal):
        assert text in form.render(report)


@pytest.mark.parametrize("form", [markdown, terminal, html])
def test_every_form_says_that_the_steps_time_is_a_median(form) -> None:
    assert "median step 412 ms (10 to 90 %" in " ".join(form.render(loader_bound()).split())
