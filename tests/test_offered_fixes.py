"""What a report shows as code beside the recommended set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_specs import made_fix
from test_patches import recording as recorded_program

from torchdoctor.advice import catalogue
from torchdoctor.advice.wording import source_patch
from torchdoctor.reports.details import details
from torchdoctor.reports.formats import rendered
from torchdoctor.reports.handed_out import patch_commands
from torchdoctor.runs.notes import fix_notes
from torchdoctor.runs.offered_fixes import as_code, offered_fixes
from torchdoctor.runs.report_assembly import RunResults, assemble
from torchdoctor.runs.run_settings import RunSettings
from torchdoctor.schema import (
    DatasetWrite,
    Diagnosis,
    Environment,
    Finding,
    FixSet,
    Interval,
    Location,
    Recommendation,
    RecommendedFix,
    Recording,
    Report,
    Trial,
    WorkloadRecord,
)
from torchdoctor.schema.specs import FixSpec
from torchdoctor.trials.outcome import TrialResults

FASTER = Interval(estimate=1.2, low=1.1, high=1.3)
OPEN = Interval(estimate=1.2, low=0.9, high=1.5)
WORKERS = {"num_workers": 2}
DIAGNOSIS = Diagnosis(
    bottleneck="data_loader",
    findings=[
        Finding(check="data-wait", fixes=["loader-workers", "prefetch-factor", "fused-optimizer"]),
        Finding(check="compute", fixes=["torch-compile"]),
    ],
)


def recording(folder: Path) -> Recording:
    """A program that waits for data and collects garbage, so that fixes have something to do."""
    seen = recorded_program(folder)
    assert seen.steps is not None
    mean_s = seen.steps.mean_s
    phases = {"data_wait_s": 0.4 * mean_s, "forward_s": 0.6 * mean_s, "gc_s": 0.1 * mean_s}
    steps = replace(seen.steps, **phases)
    return replace(seen, steps=steps)


def offered(
    folder: Path, rows: list[Trial], recommended: list[RecommendedFix]
) -> list[RecommendedFix]:
    found = offered_fixes(DIAGNOSIS, rows, recommended, recording(folder), catalogue.fixes())
    return [one for one in found if one.standing != "offered"]


def with_changed(fixes: Mapping[str, FixSpec], ident: str, **fields: Any) -> dict[str, FixSpec]:
    return {**fixes, ident: replace(fixes[ident], **fields)}


def trial(fix: str | FixSet, speedup: Interval | None, settings: Any = None, **values) -> Trial:
    fixes = fix if isinstance(fix, FixSet) else FixSet.of(fix, settings)
    known = {"verdict": "faster" if speedup is FASTER else "unclear", "numerics": "identical"}
    return Trial(fixes=fixes, speedup=speedup, **known | values)


def test_what_was_not_tried_or_not_decided_is_code_where_nothing_was_confirmed(
    tmp_path: Path,
) -> None:
    rows = [
        trial("loader-workers", None, settings=WORKERS),
        trial("fused-optimizer", OPEN, settings={"fused": True}),
        trial("prefetch-factor", Interval(estimate=0.9, low=0.7, high=1.1)),
        trial("torch-compile", None),
    ]
    found = offered(tmp_path, rows, [])
    assert [(x.fix, x.standing) for x in found] == [
        ("fused-optimizer", "undecided"),
        ("loader-workers", "untried"),
    ]
    assert found[1].edit is not None and "num_workers=2" in found[1].edit
    chosen = RecommendedFix(fix="cpu-threads")
    assert offered(tmp_path, rows, [chosen]) == []
    report = Report(
        workload=WorkloadRecord(command=["train.py"], cwd=str(tmp_path)),
        environment=Environment(),
        diagnosis=DIAGNOSIS,
        trials=rows,
        recommendation=Recommendation(also_offered=found),
    )
    titles = titles_of_offered(report)
    assert len(titles) == 2, "what was tried is told from what was not"
    for text in (
        rendered(report, "terminal"),
        rendered(report, "markdown"),
        rendered(report, "html"),
    ):
        assert [title for title in titles if title not in text] == []
        assert "num_workers=2" in text


def test_another_setting_of_what_changed_training_is_not_offered(tmp_path: Path) -> None:
    """Workers that draw other samples do so in any number; only a comparison says otherwise."""
    four = trial("loader-workers", FASTER, settings={"num_workers": 4}, numerics="changed", pairs=6)
    for two in (
        trial("loader-workers", OPEN, settings=WORKERS, numerics="not-comparable"),
        trial("loader-workers", None, settings=WORKERS, numerics="not-comparable"),
    ):
        assert offered(tmp_path, [two, four], []) == []
    compared = trial("loader-workers", OPEN, settings=WORKERS, numerics="identical")
    assert [x.settings for x in offered(tmp_path, [compared, four], [])] == [WORKERS]


def test_two_at_most_with_their_company(tmp_path: Path) -> None:
    both = FixSet({"loader-workers": WORKERS, "cpu-threads": {"num_threads": 1}})
    row = trial(both, None)
    found = offered(tmp_path, [replace(row, speedup=OPEN)], [])
    assert [(x.fix, x.settings) for x in found] == [
        ("loader-workers", WORKERS),
        ("cpu-threads", {"num_threads": 1}),
    ]
    rows = [row, trial("torch-compile", None)]
    found = offered(tmp_path, rows, [])
    assert [(x.fix, x.settings) for x in found] == [("loader-workers", WORKERS)], "nothing tried it"


def test_the_code_shown_is_of_what_the_verdict_names(tmp_path: Path) -> None:
    """The verdict named both fixes, and the code was that of one with another setting."""
    both = FixSet({"loader-workers": {"num_workers": 1}, "cpu-threads": {"num_threads": 1}})
    rows = [
        trial("loader-workers", Interval(estimate=1.1, low=0.95, high=1.3), settings=WORKERS),
        trial(both, OPEN, pairs=2),
    ]
    found = offered(tmp_path, rows, [])
    assert [(x.fix, x.settings, x.standing) for x in found] == [
        ("loader-workers", {"num_workers": 1}, "together"),
        ("cpu-threads", {"num_threads": 1}, "together"),
    ]
    report = replace(report_of(found), trials=rows)
    shown = " ".join(rendered(report, "terminal").split())
    [title] = titles_of_offered(report)
    verdict, code = shown.split(title)
    assert "(num_workers=1) + " in verdict and "(num_threads=1)" in verdict
    assert "num_workers=1" in code and "num_threads(1)" in code


@pytest.mark.parametrize("rows", [[], [trial("cpu-threads", None, settings={"num_threads": 1})]])
def test_threads_that_nobody_tried_are_code_only_where_threads_are_what_is_wrong(
    tmp_path: Path, rows: list[Trial]
) -> None:
    seen, fixes = recording(tmp_path), catalogue.fixes()

    def shown(*checks: str) -> bool:
        findings = [Finding(check=one, fixes=["cpu-threads"]) for one in checks]
        diagnosis = Diagnosis(bottleneck="cpu", findings=findings)
        found = offered_fixes(diagnosis, rows, [], seen, fixes)
        return "cpu-threads" in [one.fix for one in found]

    assert not shown("compute", "many-small-kernels")
    assert shown("compute", "too-many-threads")
    assert shown("other-load")


def test_what_is_faster_by_itself_but_not_in_the_set_is_shown(tmp_path: Path) -> None:
    rows = [
        trial("fused-optimizer", FASTER, settings={"fused": True}),
        trial("loader-workers", FASTER, settings=WORKERS),
        trial("persistent-workers", FASTER),
        trial("torch-compile", FASTER, numerics="changed"),
        trial(FixSet({"loader-workers": {}, "fused-optimizer": {}}), FASTER),
        trial("cpu-threads", OPEN, settings={"num_threads": 1}),
    ]
    found = offered(tmp_path, rows, [RecommendedFix(fix="persistent-workers", settings=WORKERS)])
    assert [(x.fix, x.standing) for x in found] == [("fused-optimizer", "confirmed")]


def test_what_was_measured_together_is_not_said_to_be_measured_alone(tmp_path: Path) -> None:
    both = FixSet({"loader-workers": WORKERS, "cpu-threads": {"num_threads": 1}})
    rows = [trial(both, OPEN)]
    found = offered(tmp_path, rows, [])
    assert {x.standing for x in found} == {"together"}
    shown = rendered(report_of(found), "terminal")
    [title] = titles_of_offered(report_of(found))
    assert title in " ".join(shown.split())
    for standing in ("undecided", "untried"):
        alone = report_of([replace(fix, standing=standing) for fix in found])
        assert title not in titles_of_offered(alone)
    report = replace(report_of(found), run_folder="runs/1")
    joint = "patch runs/1 --fixes loader-workers --fixes cpu-threads"
    assert [x.edit is not None for x in found] == [True, True]
    [command] = patch_commands(report, found)
    assert command.show == f"torchdoctor {joint}"
    assert command.apply is None, "the edits never ran"
    # One thread without the workers is not what was measured.
    assert patch_commands(report, [replace(found[0], edit=None), found[1]]) == []


def test_what_only_a_run_can_clear_is_not_offered_without_one(tmp_path: Path) -> None:
    """A cache of samples that differ each time would freeze the augmentation for ever."""
    diagnosis = Diagnosis(
        bottleneck="data_loader",
        findings=[Finding(check="loader-cpu-bound", fixes=["decoded-cache"])],
    )
    seen, fixes = recording(tmp_path), catalogue.fixes()
    fixes = {
        **fixes,
        "decoded-cache": replace(fixes["decoded-cache"], refuses=lambda recording: None),
    }
    for rows in ([], [trial("decoded-cache", None)]):
        found = offered_fixes(diagnosis, rows, [], seen, fixes)
        assert "decoded-cache" not in [one.fix for one in found]
    fixes = with_changed(fixes, "decoded-cache", offered_untried=True)
    found = offered_fixes(diagnosis, [], [], seen, fixes)
    assert [one.fix for one in found] == ["decoded-cache"], "else the test says nothing"


def changing_itself(folder: Path) -> Recording:
    """A program whose dataset counts in itself."""
    seen = recording(folder)
    line = Location(file=seen.workload.script or "", line=8)
    loaders = [
        replace(one, dataset_writes=[DatasetWrite(name="self.seen", location=line)])
        for one in seen.main.loaders
    ]
    return replace(seen, processes=[replace(seen.main, loaders=loaders)])


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (trial("loader-workers", None, settings=WORKERS), False),
        (trial("loader-workers", OPEN, settings=WORKERS, numerics="not-comparable"), False),
        (trial("loader-workers", OPEN, settings=WORKERS), True),
        (trial("loader-workers", FASTER, settings=WORKERS), True),
        (trial("loader-workers", FASTER, settings=WORKERS, numerics="changed"), False),
        (None, False),
    ],
)
def test_workers_for_a_dataset_that_changes_itself_are_shown_where_training_was_seen_the_same(
    tmp_path: Path, row: Trial | None, shown: bool
) -> None:
    """Measured launches end before a later epoch misses what the workers did not hand back."""
    seen, fixes = changing_itself(tmp_path), catalogue.fixes()
    fixes = {
        **fixes,
        "loader-workers": replace(fixes["loader-workers"], refuses=lambda recording: None),
    }
    found = offered_fixes(DIAGNOSIS, [row] if row else [], [], seen, fixes)
    assert ("loader-workers" in [one.fix for one in found]) == shown
    plain = offered_fixes(DIAGNOSIS, [row] if row else [], [], recording(tmp_path), fixes)
    changed = row is not None and row.numerics == "changed"
    assert ("loader-workers" in [one.fix for one in plain]) != changed

    notes = fix_notes([one.fix for one in found], [], seen, fixes)
    assert [note.fact for note in notes] == ["dataset-changed-in-workers"] * shown
    assert all(note.values["changes"][0]["name"] == "self.seen" for note in notes)
    assert fix_notes([one.fix for one in plain], [], recording(tmp_path), fixes) == []


def test_a_trial_that_changed_training_comes_with_the_line_of_the_dataset(tmp_path: Path) -> None:
    """The row says that something keeps state; the doubt says what."""
    row = trial("loader-workers", FASTER, settings=WORKERS, numerics="changed")
    found = assemble(
        RunResults(
            recording=changing_itself(tmp_path),
            diagnosis=DIAGNOSIS,
            trials=TrialResults(trials=[row], noise_floor=None, recommendation=Recommendation()),
            settings=RunSettings(),
        )
    )
    assert "loader-workers" not in [one.fix for one in found.recommendation.also_offered]
    (said,) = [doubt for doubt in found.doubts if "changes itself" in doubt]
    assert ":8, self.seen" in said


def report_of(offered: list[RecommendedFix]) -> Report:
    return Report(
        workload=WorkloadRecord(command=["train.py"], cwd="/w"),
        environment=Environment(),
        diagnosis=DIAGNOSIS,
        recommendation=Recommendation(also_offered=offered),
    )


def titles_of_offered(report: Report) -> list[str]:
    """Return the titles of what is offered beside the recommended set."""
    nothing = replace(report.recommendation, also_offered=[])
    others = {section.title for section in details(replace(report, recommendation=nothing))}
    return [section.title for section in details(report) if section.title not in others]


LOOKED_SLOWER = Interval(estimate=0.63, low=0.01, high=40.0)


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        ([LOOKED_SLOWER, LOOKED_SLOWER], []),
        ([LOOKED_SLOWER, OPEN], [({"num_workers": 8}, "undecided")]),
        ([OPEN, OPEN], [({"num_workers": 4}, "undecided")]),
    ],
)
def test_no_setting_is_offered_untried_where_others_of_the_fix_looked_slower(
    tmp_path: Path, measured: list[Interval], shown: list
) -> None:
    rows = [trial("loader-workers", None, settings={"num_workers": 16})]
    for number, interval in zip((4, 8), measured, strict=True):
        rows.append(trial("loader-workers", interval, settings={"num_workers": number}, pairs=2))
    found = offered(tmp_path, rows, [])
    assert [(one.settings, one.standing) for one in found] == shown


def test_a_fix_that_fails_to_name_its_edits_keeps_its_instruction(tmp_path: Path) -> None:
    """The whole report was lost with it."""

    def fail(settings: dict, recording: Recording) -> list:
        raise IndexError

    by_hand = made_fix("broken", instruction=lambda settings, recording: "by hand", edits=fail)
    seen, modules = recording(tmp_path), {**catalogue.fixes(), "broken": by_hand}
    one = as_code(RecommendedFix(fix="broken"), seen, modules)
    assert (one.instruction, one.edit) == ("by hand", None)
    patch = source_patch(FixSet({"broken": {}, "loader-workers": WORKERS}), seen, modules)
    assert patch is not None
    assert (patch.fixes, patch.left_out) == (["loader-workers"], ["broken"])


def test_of_settings_without_a_measurement_the_most_promising_one_is_offered(
    tmp_path: Path,
) -> None:
    """The screen named four workers, and its command gave the patch of one."""
    rows = [
        trial("loader-workers", None, settings={"num_workers": n}, expected=gain)
        for n, gain in ((1, 1.04), (4, 1.11), (2, 1.08))
    ]
    assert [fix.settings for fix in offered(tmp_path, rows, [])] == [{"num_workers": 4}]


def test_a_fix_without_a_setting_worth_trying_is_not_offered(tmp_path: Path) -> None:
    seen, fixes = recording(tmp_path), catalogue.fixes()
    diagnosis = replace(DIAGNOSIS, findings=[Finding(check="gc-pauses", fixes=["gc-freeze"])])
    fixes = with_changed(fixes, "gc-freeze", refuses=lambda recording: None)
    assert [x.fix for x in offered_fixes(diagnosis, [], [], seen, fixes)] == ["gc-freeze"]
    fixes = with_changed(fixes, "gc-freeze", settings=lambda recording: [])
    assert offered_fixes(diagnosis, [], [], seen, fixes) == []
