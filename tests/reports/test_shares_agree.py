"""The bar, the findings and the tree of one report say the same of the same time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import samples

from torchdoctor.reports.formats import rendered
from torchdoctor.reports.time_parts import time_bars
from torchdoctor.schema import Evidence, Finding, Question, Report, Shares, TraceStatistics


def _of_a_trace() -> Report:
    """Kernels 17 %, operators 33 %, and Python between them 50 %, which a trace calls other."""
    report = samples.loader_bound()
    trace = TraceStatistics(
        steps=5, step_s=0.010, has_device=True, python_s=0.005, path="trace.json"
    )
    shares = Shares(gpu=0.17, cpu=0.33, other=0.50)
    waits = Evidence(fact="computes", sentence="The GPU waits.")
    idle = Finding(check="gpu-utilization", share_of_step=0.83, evidence=[waits])
    return replace(
        report,
        baseline=replace(report.baseline, shares=shares),
        diagnosis=replace(report.diagnosis, findings=[idle]),
        trace=trace,
    )


def test_what_the_tree_asks_as_cpu_execution_is_no_other_time_in_the_bar() -> None:
    """ "49 % other" stood beside "Is anything else high? no 0 %"."""
    rows = {bar.key: bar.share for bar in time_bars(_of_a_trace())}
    assert rows == pytest.approx({"gpu": 0.17, "cpu": 0.83})


def test_time_between_epochs_is_named_where_it_is_most_of_the_rest() -> None:
    """ "62 % other" was the longest part of a bar, and no word said that it lay between epochs."""
    report = samples.loader_bound()
    for between_s, told in ((0.6, ", mostly between epochs"), (0.2, "")):
        steps = replace(report.steps, mean_s=1.0, other_s=0.62, between_epochs_s=between_s)
        labels = [bar.label for bar in time_bars(replace(report, steps=steps))]
        assert f"other{told}" in labels


@pytest.mark.parametrize("shown", ["terminal", "markdown", "html"])
def test_the_share_of_gpu_utilization_is_said_to_be_idle(shown) -> None:
    assert "GPU idle 83" in rendered(_of_a_trace(), shown)


@pytest.mark.parametrize("shown", ["terminal", "markdown", "html"])
def test_the_rule_is_told_once_where_several_branches_are_high(shown) -> None:
    """24 % of waiting for data was named before 75 % of CPU, and nobody said why."""
    report = samples.loader_bound()

    def asked(*answers: str) -> str:
        path = [
            Question(
                question=f"Is {n} high?",
                answer=answer,
                metric="m",
                value=0.5,
                threshold=0.2,
                source="s",
            )
            for n, answer in enumerate(answers)
        ]
        asked = replace(report, diagnosis=replace(report.diagnosis, path=path))
        text = rendered(asked, shown)
        return " ".join(text.split())

    rule = "The first yes names the bottleneck"
    assert asked("yes", "no", "yes").count(rule) == 1
    assert rule not in asked("no", "no", "yes")
