"""`torchdoctor compare`: what it says where the two were not seen alike, or nothing is proven."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compared_pairs import diagnosed, facts_of, remarks_of, run_with, trace_of
from shown import markdown, terminal

from torchdoctor import __version__
from torchdoctor.compare import compare
from torchdoctor.compare.surroundings import script_name
from torchdoctor.schema import Boundary, Finding, Report, TraceStatistics
from torchdoctor.schema.figures import seconds


def found_in(report: Report, *findings: Finding) -> Report:
    return replace(report, diagnosis=replace(report.diagnosis, findings=list(findings)))


SYNC = Finding(check="sync-in-step", share_of_step=0.2)
WAIT = Finding(check="data-wait", share_of_step=0.3)


def profiled(report: Report) -> Report:
    shares = replace(report.baseline.shares, communication=0.2, cpu=0.02)
    baseline = replace(report.baseline, shares=shares)
    return replace(report, baseline=baseline, trace=TraceStatistics(path="t", steps=4))


def unprofiled(factor: float = 1.0) -> Report:
    report = replace(run_with(factor), trace=None)
    shares = replace(report.baseline.shares, communication=None)
    return replace(report, baseline=replace(report.baseline, shares=shares))


@pytest.mark.parametrize("turned", [False, True], ids=["came", "went"])
def test_what_only_a_profiler_window_shows_is_neither_new_nor_gone(turned: bool) -> None:
    """One run had no budget for the window: no branch changed by that."""
    pair = [found_in(unprofiled()), found_in(profiled(run_with(1.4)), SYNC, WAIT)]
    found = compare(*reversed(pair)) if turned else compare(*pair)
    assert [one.check for one in found.findings] == ["data-wait"], "seen without a window too"
    assert found.parts_are == "phases"
    parts = [x.values["part"] for x in found.answer if x.fact == "part-changed"]
    assert "communication" not in parts
    label = "A" if turned else "B"
    assert remarks_of(found)["profiled-alone-by-phases"]["profiled"] == label


def test_two_runs_that_were_measured_alike_are_told_by_branches() -> None:
    for pair in ((unprofiled(), unprofiled(1.4)), (profiled(run_with()), profiled(run_with(1.4)))):
        found = compare(*pair)
        assert found.parts_are == "branches"
        assert not any(name.startswith("profiled-alone") for name in remarks_of(found))


def test_changes_of_a_step_that_did_not_change_are_said_to_be_that() -> None:
    before, after = found_in(run_with(), WAIT), found_in(run_with(1.03))
    assert compare(before, after).verdict == "unclear"
    for text in (terminal(compare(before, after)), markdown(compare(before, after))):
        assert text.index("chance") < text.rindex("data-wait")
    assert "chance" not in terminal(compare(before, found_in(run_with(1.4))))


def test_what_may_have_been_measured_otherwise_is_a_doubt() -> None:
    a = replace(run_with(), interrupted=True, torchdoctor_version="0.0.9")
    known = remarks_of(compare(a, replace(run_with(), torchdoctor_version=__version__)))
    assert known["was-interrupted"] == {"side": "A"}
    assert known["other-versions"] == {"a": "0.0.9", "b": __version__}


def test_a_finding_that_was_there_below_its_threshold_is_not_new(tmp_path: Path) -> None:
    a = diagnosed(tmp_path, "a.json", trace_of(collective_us=50))
    b = diagnosed(tmp_path, "b.json", trace_of(collective_us=150))
    known = facts_of(compare(a, b))
    assert known["crossed-threshold"]["check"] == "communication-share"
    assert "new-finding" not in known


def test_the_sentence_calls_a_part_what_the_table_calls_it(tmp_path: Path) -> None:
    a = diagnosed(tmp_path, "a.json", trace_of())
    found = compare(a, diagnosed(tmp_path, "b.json", trace_of(loader_us=600.0)))
    assert "waiting for data (+300 us)" in found.sentence
    assert "waiting for data  " in terminal(found)


def test_more_ranks_are_not_another_batch_size() -> None:
    one = run_with()
    assert one.steps is not None
    more = replace(one, steps=replace(one.steps, trainers=2, samples_per_step=64.0))
    one = replace(one, steps=replace(one.steps, samples_per_step=32.0))
    found = compare(one, more)
    assert found.verdict == "not comparable"
    known = facts_of(found)
    assert known["another-number-of-processes"] == {"a": 1, "b": 2}
    assert "another-batch-size" not in known


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m torch.distributed.run --nproc_per_node 2 a.py", "a.py"),
        ("python -m torch.distributed.run -m pkg.train", "pkg.train"),
        ("torchrun --nproc_per_node=2 /x/a.py -m 3", "a.py"),
        ("python -m pkg.train", "pkg.train"),
    ],
)
def test_a_launcher_is_not_the_script(command: str, name: str) -> None:
    assert script_name(command.split()) == name


def test_times_of_several_units_keep_the_last_one() -> None:
    """Two minutes and five seconds were "2 min 5" beside another time in seconds."""
    found = compare(*(replace(run_with(factor), trace=None) for factor in (4000.0, 9000.0)))
    [timed] = [fact for fact in found.answer if "a_s" in fact.values]
    times = [timed.values["a_s"], timed.values["b_s"]]
    assert min(times) > 120, "seconds, from where on minutes are told"
    assert all(seconds(time) in timed.sentence for time in times)


def test_programs_that_infer_are_compared_by_their_calls() -> None:
    boundary = Boundary(kind="forward", learned_by="forward")
    reports = []
    for report in (unprofiled(), unprofiled(1.4)):
        assert report.steps is not None
        steps = replace(report.steps, boundary=boundary)
        reports.append(replace(found_in(report, WAIT), kind="inference", steps=steps))
    found = compare(*reports)
    assert (found.kind, found.unit) == ("inference", "call")
    for text in (found.sentence, terminal(found), markdown(found)):
        assert " per call" in text
        assert not [word for word in ("training", " step ", "per step", "'s step") if word in text]
