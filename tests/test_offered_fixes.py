"""What a report shows as code beside the recommended set."""

from __future__ import annotations

from pathlib import Path

from test_patches import recording

from torchdoctor import catalogue
from torchdoctor.offered_fixes import offered_fixes
from torchdoctor.records import (
    Diagnosis,
    Environment,
    Finding,
    Interval,
    Recommendation,
    RecommendedFix,
    Report,
    Trial,
    WorkloadRecord,
)
from torchdoctor.reports import html, markdown, terminal

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


def offered(
    folder: Path, rows: list[Trial], recommended: list[RecommendedFix]
) -> list[RecommendedFix]:
    found = offered_fixes(DIAGNOSIS, rows, recommended, recording(folder), catalogue.fixes())
    return [one for one in found if one.standing != "offered"]


def trial(fix: str, speedup: Interval | None, **values) -> Trial:
    verdict = "faster" if speedup is FASTER else "unclear"
    return Trial(
        **{"fix": fix, "speedup": speedup, "verdict": verdict, "numerics": "identical"} | values
    )


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
        ("loader-workers", "untried"),
        ("fused-optimizer", "undecided"),
    ]
    assert found[0].edit is not None and "num_workers=2" in found[0].edit
    chosen = RecommendedFix(fix="cpu-threads")
    assert offered(tmp_path, rows, [chosen]) == []
    report = Report(
        workload=WorkloadRecord(command=["train.py"], cwd=str(tmp_path)),
        environment=Environment(),
        diagnosis=DIAGNOSIS,
        trials=rows,
        recommendation=Recommendation(also_offered=found),
    )
    for text in (terminal.render(report), markdown.render(report), html.render(report)):
        assert "What could help, not confirmed" in text
        assert "(not measured)" in text and "(measured, not decided)" in text
        assert "num_workers=2" in text


def test_two_at_most_with_their_company(tmp_path: Path) -> None:
    both = "loader-workers + cpu-threads"
    row = trial(both, None, settings={"loader-workers": WORKERS, "cpu-threads": {"num_threads": 1}})
    found = offered(tmp_path, [row, trial("fused-optimizer", OPEN)], [])
    assert [(x.fix, x.settings) for x in found] == [
        ("loader-workers", WORKERS),
        ("cpu-threads", {"num_threads": 1}),
    ]


def test_what_is_faster_by_itself_but_not_in_the_set_is_shown(tmp_path: Path) -> None:
    rows = [
        trial("fused-optimizer", FASTER, settings={"fused": True}),
        trial("loader-workers", FASTER, settings=WORKERS),
        trial("persistent-workers", FASTER),
        trial("torch-compile", FASTER, numerics="changed"),
        trial("loader-workers + fused-optimizer", FASTER),
        trial("cpu-threads", OPEN, settings={"num_threads": 1}),
    ]
    found = offered(tmp_path, rows, [RecommendedFix(fix="persistent-workers", settings=WORKERS)])
    assert [(x.fix, x.standing) for x in found] == [("fused-optimizer", "confirmed")]
