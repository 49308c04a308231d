"""What is printed fits into 80 columns, and carries no colour codes into a pipe."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console
from samples import SAMPLES, diagnosed_only, loader_bound
from typer.testing import CliRunner

from torchdoctor.advice import catalogue
from torchdoctor.checkup.traces import NOT_MEASURED
from torchdoctor.cli.front import app
from torchdoctor.reports import gate, terminal
from torchdoctor.reports.wrapping import fill, reflow
from torchdoctor.words import Interval
from torchdoctor.words.gate import GateMetric, GateReport

IDS = [*catalogue.checks(), *catalogue.fixes()]


def too_wide(text: str) -> list[str]:
    """Lines that do not fit, but for a word (an address, a path) that cannot be broken."""
    return [line for line in text.splitlines() if len(line) > 80 and len(line.split()) > 1]


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    return result.output


@pytest.mark.parametrize("ident", IDS)
def test_every_page_fits(ident: str) -> None:
    page = reflow(catalogue.explain(ident), 80)
    assert too_wide(page) == []

    # No word is lost: only what breaks a line of code, or goes on with a comment, is added.
    def words(text: str) -> list[str]:
        return sorted(word for word in text.split() if word not in ("\\", "#"))

    assert words(page) == words(catalogue.explain(ident))


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
        "    # why this line of code is as it is, at some",
        "    # length",
        "    x = 1",
        "    y = 2",
    ]
    assert fill("  a: " + "word " * 20, 6, 40).splitlines()[1].startswith("      word")


@pytest.mark.parametrize("name", SAMPLES)
def test_a_report_fits(name: str) -> None:
    assert too_wide(terminal.render(SAMPLES[name]())) == []


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
    assert too_wide(gate.terminal(report)) == []


@pytest.mark.parametrize("width", [80, 77, 60, 44])
def test_a_command_to_copy_stays_on_one_line_of_its_section(width: int) -> None:
    report = replace(diagnosed_only(), no_trials_reason=NOT_MEASURED)
    text = terminal.render(report, width)
    command = "torchdoctor run train.py"
    assert sum(line.endswith(command) for line in text.splitlines()) == 2  # the verdict's as well
    tried = text.partition("What was tried")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(tried) > 1
    assert all(line.startswith("  ") for line in tried)
    assert " ".join(" ".join(tried).split()) == NOT_MEASURED
    assert max(map(len, text.splitlines())) <= width


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
    report = replace(report, recommendation=recommended)
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=colour,
        no_color=True,
        legacy_windows=False,
        color_system="standard" if colour else None,
    )
    terminal._print(console, report, "--html FILE")
    text = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert LONG_EDIT in "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    command = f"torchdoctor patch {report.run_folder}/report.json | git apply"
    assert f"     $ {command}" in [line.rstrip() for line in text.splitlines()]
