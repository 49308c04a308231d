"""What a person sees of the log: a real TensorBoard server in a real Chromium."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from browser import Browser, chromium, tensorboard
from run_folders import OBSERVED_STEPS, ranks_folder, report_with_run

from torchdoctor.reports.tensorboard.write import write_tensorboard
from torchdoctor.reports.trial_rows import measured
from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema import Report
from torchdoctor.schema.figures import speedup

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chromium")]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report_with_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def address(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("logs")
    write_tensorboard(report, folder)
    ranks = tmp_path_factory.mktemp("traces") / "ranks"
    ranks_folder(ranks)
    write_tensorboard(trace_checkup([str(ranks)]), folder)
    with tensorboard(folder) as found:
        yield found


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Browser]:
    with chromium() as found:
        yield found


def run_of(address: str, report: Report) -> str:
    runs = json.loads(urllib.request.urlopen(f"{address}/data/runs", timeout=10).read())
    when = "".join(c for c in report.created.partition("+")[0] if c.isalnum())
    return next(name for name in runs if name == f"{when}/run")


def test_scalars_are_charts_with_what_was_measured(
    browser: Browser, address: str, report: Report
) -> None:
    browser.open(f"{address}/#scalars")
    charts = browser.wait(lambda: browser.each("tf-scalar-card", "e.tag"))
    browser.picture("scalars")
    assert "memory/process_tree_GB" in charts
    assert "memory/gpu_GB" not in charts
    groups = browser.each("tf-category-paginated-view", "e.category && e.category.name")
    assert {"memory", "samples_per_s", "share_of_step", "step_time", "utilization"} <= set(groups)
    # The page's own question for one chart's points.
    query = f"run={quote(run_of(address, report), safe='')}&tag=step_time%2Fobserved_s"
    points = browser.run(
        "return fetch(arguments[0]).then(answer => answer.json())",
        f"{address}/data/plugin/scalars/scalars?{query}",
    )
    assert len(points) == OBSERVED_STEPS


def test_hparams_have_one_row_for_each_trial(
    browser: Browser, address: str, report: Report
) -> None:
    trials = [trial for trial in report.trials if trial.speedup is not None]
    rows = len(trials) + 2  # all together, and the A/A candidate
    browser.open(f"{address}/#hparams")

    def filled() -> list[str] | None:
        found = browser.texts("vaadin-grid-cell-content")
        return found if sum(cell.startswith("0") for cell in found) >= rows else None

    cells = browser.wait(filled)
    browser.picture("hparams")
    for trial in trials:
        assert trial.speedup is not None
        for figure in (trial.speedup.estimate, trial.speedup.low, trial.speedup.high):
            assert f"{figure:#.5g}" in cells
        assert trial.verdict in cells
    numbered = {cell for cell in cells if re.match(r"\d\d ", cell)}
    assert len(numbered) == rows, numbered
    for column in ("fix", "settings", "verdict", "training", "speedup_low", "speedup_high"):
        assert column in cells


def test_text_is_the_report_without_leftovers_of_markdown(
    browser: Browser, address: str, report: Report
) -> None:
    browser.open(f"{address}/#text")
    verdict = re.split(r"\d", report.diagnosis.sentence)[0]  # figures are spaced there
    browser.wait(lambda: any(text.startswith(verdict) for text in browser.texts("p")))
    wanted = {speedup(trial.speedup, trial.pairs) for trial in measured(report)}
    wanted |= {asked.question for asked in report.diagnosis.path}
    browser.wait(lambda: wanted <= set(browser.texts("td")))  # text after text is loaded
    browser.picture("text")
    outside_code = browser.texts("td, li, p, h3")
    for leftover in ("\\", "**", "`", "&lt;", "&#", "|", "#"):
        assert not [x for x in outside_code if leftover in x], leftover


def test_the_removed_profiler_plugin_opens_the_traces_of_all_ranks(
    browser: Browser, address: str
) -> None:
    pytest.importorskip("torch_tb_profiler", reason="torch-tb-profiler is not installed")

    def workers() -> list[str] | None:
        runs = browser.run(
            "return fetch(arguments[0]).then(answer => answer.json())",
            f"{address}/data/plugin/pytorch_profiler/runs",
        )
        if runs["loading"] or len(runs["runs"]) < 2:
            return None
        found = []
        for run in runs["runs"]:
            query = f"run={quote(run, safe='')}&view=Trace"
            found += browser.run(
                "return fetch(arguments[0]).then(answer => answer.json())",
                f"{address}/data/plugin/pytorch_profiler/workers?{query}",
            )
        return found

    browser.open(f"{address}/#pytorch_profiler")
    found = browser.wait(workers)
    browser.picture("pytorch_profiler")
    assert {"node-a_100", "node-a_101"} <= set(found)
    assert len(found) == 3
