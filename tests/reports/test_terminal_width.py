"""What is printed fits into 80 columns, and carries no colour codes into a pipe."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import shown
from samples import SAMPLES, loader_bound
from typer.testing import CliRunner

from torchdoctor.advice import catalogue
from torchdoctor.cli.front import app
from torchdoctor.reports import terminal
from torchdoctor.reports.formats import document, rendered
from torchdoctor.reports.wrapping import fill, reflow
from torchdoctor.schema import Interval
from torchdoctor.schema.gate import GateMetric, GateReport

IDS = [*catalogue.checks(), *catalogue.fixes()]


def too_wide(text: str) -> list[str]:
    """Lines that do not fit, but for code and a word (an address, a path), which stay whole."""
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    return [line for line in lines if len(line) > 80 and len(line.split()) > 1]


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    return result.output


@pytest.mark.parametrize("ident", IDS)
def test_every_page_fits(ident: str) -> None:
    page = reflow(catalogue.explain(ident), 80)
    assert too_wide(page) == []

    assert page.split() == catalogue.explain(ident).split(), "no word is lost"


@pytest.mark.parametrize(
    "arguments", [("explain", "loader-workers"), ("explain", "--tree"), ("explain", "--all")]
)
def test_explain_fits(arguments: tuple[str, ...]) -> None:
    text = printed(*arguments)
    assert too_wide(text) == []
    assert "loader-workers" in text


def test_env_fits() -> None:
    assert too_wide(printed("env")) == []


def test_lists_and_code_keep_their_shape() -> None:
    page = "\n".join(
        [
            "Sources",
            "-------",
            "- One title that is long enough to need a second line on a narrow terminal:",
            "  https://example.org/a-very-long-address/that-nobody-can-break/at-all.html",
            "",
            "    x = 1                  # why this line of code is as it is, at some length",
            "    y = 2",
        ]
    )
    assert reflow(page, 50).splitlines() == [
        "Sources",
        "-------",
        "- One title that is long enough to need a second",
        "  line on a narrow terminal:",
        "  https://example.org/a-very-long-address/that-nobody-can-break/at-all.html",
        "",
        "    x = 1                  # why this line of code is as it is, at some length",
        "    y = 2",
    ]
    assert fill("  a: " + "word " * 20, 6, 40).splitlines()[1].startswith("      word")


@pytest.mark.parametrize("name", SAMPLES)
def test_a_report_fits(name: str) -> None:
    text = rendered(SAMPLES[name](), "terminal", width=80)
    assert [line for line in too_wide(text) if line[0] not in "+- "] == []


def test_a_gates_table_fits() -> None:
    ratio = Interval(estimate=1.2, low=1.15, high=1.25)
    rows = [
        GateMetric(
            name="peak_memory_of_the_process",
            unit="s/sample",
            reference=0.0123,
            new=0.0148,
            ratio=ratio,
            tolerance=0.02,
            verdict="not measured",
        )
    ]
    sample = SAMPLES["nothing_found"]()
    report = GateReport(
        workload=sample.workload,
        environment=sample.environment,
        reference="main",
        verdict="slower",
        sentence="It is slower. " * 12,
        metrics=rows,
        doubts=["A doubt that goes on for longer than one line of a terminal. " * 3],
    )
    assert too_wide(shown.terminal(report, width=80)) == []


LONG_EDIT = """\
--- a/train.py
+++ b/train.py
@@ -40,3 +40,4 @@
     for images, labels in loader:
-            loss = F.cross_entropy(model(images.to(device)), y.to(device), label_smoothing=0.1)
+            with torch.autocast("cpu", dtype=torch.bfloat16):
+                loss = F.cross_entropy(model(images.to(device)), y.to(device), label_smoothing=0.1)
"""


@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize("width", [80, 44])
def test_a_diff_and_the_command_that_applies_it_are_not_broken(width: int, colour: bool) -> None:
    """Copied from the terminal, a line in two is another program."""
    report = loader_bound()
    [fix] = report.recommendation.fixes
    recommended = replace(
        report.recommendation, fixes=[replace(fix, edit=LONG_EDIT)], patch=LONG_EDIT
    )
    made = document(replace(report, recommendation=recommended))
    drawn = terminal.render(made, width, colours="standard" if colour else None)
    text = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    assert LONG_EDIT in "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    command = f"torchdoctor patch {report.run_folder} --apply"
    assert f"    $ {command}" in [line.rstrip() for line in text.splitlines()]
