"""No text of a program or a file steers the terminal, or is markup in a page or in Markdown."""

from __future__ import annotations

import builtins
import dataclasses
import json
import os
import pty
import re
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import commands
import pytest
from markdown_it import MarkdownIt
from samples import SAMPLES

from torchdoctor.compare import compare
from torchdoctor.reports import comparison as comparison_format
from torchdoctor.reports import gate as gate_format
from torchdoctor.reports import markdown, terminal
from torchdoctor.reports.formats import document, rendered
from torchdoctor.reports.pictures import _around
from torchdoctor.reports.side_by_side import comparison_page, gate_page
from torchdoctor.schema import BRANCHES, Environment, FixSet, Interval, Report, WorkloadRecord
from torchdoctor.schema.figures import clean, visible
from torchdoctor.schema.gate import GateMetric, GateReport
from torchdoctor.schema.record_files import encode, write_record
from torchdoctor.schema.trials import Ceiling

PLANTED = "planted"
EVIL = (
    "\x1b]0;title\x07\x1b[2J\x9b31m\x7f\u202e\u2066"
    f"<script>alert(1)</script> [link](https://example.org) ![image](x) `````{PLANTED}\n"
    f"\n# {PLANTED}\n\n{PLANTED}\n====\n\n- {PLANTED}\n\n<b>{PLANTED}</b>\r::error::{PLANTED}"
)
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def poisoned(value: Any) -> Any:
    """The same record with the evil text behind each of its strings, keys included."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [
            field.name for field in dataclasses.fields(value) if field.name != "schema_version"
        ]
        return dataclasses.replace(value, **{x: poisoned(getattr(value, x)) for x in names})
    if isinstance(value, dict):
        return {key if key in BRANCHES else poisoned(key): poisoned(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(poisoned(entry) for entry in value)
    return value + EVIL if isinstance(value, str) else value


def one_poisoned(value: Any) -> list[Any]:
    """The record with the evil text in place of a string, once for each of its strings."""
    if isinstance(value, str):
        return [EVIL, value + EVIL]
    if isinstance(value, dict):
        return [{**value, key: new} for key, x in value.items() for new in one_poisoned(x)]
    if isinstance(value, list):
        return [
            [*value[:at], new, *value[at + 1 :]]
            for at, x in enumerate(value[:2])
            for new in one_poisoned(x)
        ]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            dataclasses.replace(value, **{field.name: new})
            for field in dataclasses.fields(value)
            if field.name != "schema_version"
            for new in one_poisoned(getattr(value, field.name))
        ]
    return []


def check_terminal(text: str) -> None:
    assert not STEERS.search(text)


def check_page(page: str) -> None:
    assert "<script>alert" not in page and "<b>planted" not in page
    assert not STEERS.search(
        re.sub("<style>.*?</style>|<script>.*?</script>", "", page, flags=re.S)
    )


def check_markdown(text: str) -> None:
    """Parsed as GitHub does: what is planted begins no block, and is no link, image or HTML."""
    assert not STEERS.search(text)
    for block in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        assert block.type not in ("html_block", "hr", "code_block"), block.content
        assert block.type != "fence" or len(block.markup) > 3
        if block.type == "inline":
            assert not block.content.lstrip("\\*#=- ").startswith(PLANTED)
            kinds = {child.type for child in block.children or []}
            assert kinds <= {"text", "strong_open", "strong_close", "code_inline", "text_special"}


@pytest.mark.parametrize("name", SAMPLES)
def test_no_string_of_a_report_is_more_than_text(name: str) -> None:
    report = SAMPLES[name]()
    single = one_poisoned(report) if name == "loader_bound" else []
    for evil in [poisoned(report), *single[::2], *single[1:40:2]]:
        said = document(evil)
        check_terminal(terminal.render(said))
        check_markdown(markdown.render(said))
    for format in ("json", "sarif"):
        check_terminal(rendered(poisoned(report), format))
    check_page(rendered(poisoned(report), "html"))
    assert json.loads(encode(poisoned(report)))["workload"]["cwd"].endswith(EVIL)


def filled(kind: Any, text: str) -> Any:
    """A value of this type with no field left empty, each of its strings the text."""
    if dataclasses.is_dataclass(kind):
        if kind is Interval:
            return Interval(estimate=1.7, low=1.5, high=1.9)
        hints = typing.get_type_hints(kind)
        fields = {field.name for field in dataclasses.fields(kind)} - {"schema_version"}
        return kind(**{name: filled(hints[name], text) for name in fields})
    if kind is FixSet:
        return FixSet.of(text, {text: text})
    of = [x for x in typing.get_args(kind) if x is not type(None)]
    match typing.get_origin(kind) or kind:
        case builtins.list:
            return [filled(of[0], text)]
        case builtins.dict:
            return {text: filled(of[1], text)}
        case builtins.tuple:
            return tuple(filled(x, text) for x in of)
        case typing.Union | types.UnionType:
            return filled(of[0], text)
        case builtins.bool:
            return False
        case builtins.int:
            return 2
        case builtins.float:
            return 0.5
    return text


@pytest.mark.parametrize("planted", ["evil", "evil-behind-a-word"])
def test_no_string_of_any_field_is_more_than_text(tmp_path: Path, planted: str) -> None:
    report = filled(Report, EVIL if planted == "evil" else f"cpu{EVIL}")
    branches = {name: filled(Ceiling, EVIL) for name in BRANCHES}
    known = dataclasses.replace(report.diagnosis, bottleneck="cpu")
    report = dataclasses.replace(report, ceilings=branches, interrupted=True)
    for made in (report, dataclasses.replace(report, diagnosis=known)):
        made = dataclasses.replace(made, run_folder=str(tmp_path / f"run{EVIL[:20]}"))
        run = tmp_path / "torchdoctor-runs" / f"run{EVIL[:20]}"
        run.mkdir(parents=True, exist_ok=True)
        write_record(made, run / "report.json")
        check_terminal((run / "report.json").read_text())
        for options in (["report"], ["report", "--details"], ["report", "--list"], ["explain"]):
            shown = commands.torchdoctor(*options, cwd=tmp_path)
            assert shown.returncode == 0, shown.stderr
            check_terminal(shown.stdout + shown.stderr)
        for format, check in {"markdown": check_markdown, "html": check_page}.items():
            shown = commands.torchdoctor("report", run, "--format", format, cwd=tmp_path)
            assert shown.returncode == 0, shown.stderr
            check(shown.stdout)
        for options in (
            [],
            ["--apply"],
            ["--apply", "--force"],
            ["--fixes", "x"],
            ["--fixes", EVIL],
        ):
            shown = commands.torchdoctor("patch", run, *options, cwd=tmp_path)
            check_terminal(shown.stderr)
            assert "defect" not in shown.stderr


def gate_result() -> GateReport:
    ratio = Interval(estimate=1.2, low=1.1, high=1.3)
    step = GateMetric(
        name="step_time", reference=1.0, new=1.2, unit="s", ratio=ratio, tolerance=0.1,
        verdict="worse",
    )  # fmt: skip
    return GateReport(
        workload=WorkloadRecord(command=["train.py"]), environment=Environment(),
        reference="main", verdict="slower", sentence="It is slower.", metrics=[step],
        doubts=["A doubt."], pairs=3,
    )  # fmt: skip


def test_no_string_of_a_gate_is_more_than_text() -> None:
    for evil in one_poisoned(gate_result()):
        if evil.verdict != "slower" or evil.measured != "in turns":
            continue  # words of ours
        said = gate_format.document(evil)
        check_terminal(terminal.render(said))
        check_markdown(markdown.render(said))
        check_page(gate_page(evil))
        check_terminal(encode(evil).decode())
        ElementTree.fromstring(gate_format.junit(evil).partition("\n")[2])
        assert len(gate_format.annotation(evil).splitlines()) == 1


def test_no_string_of_a_comparison_is_more_than_text() -> None:
    made = list(SAMPLES.values())
    sides = poisoned(made[0]()), poisoned(made[0]())
    compared = compare(*sides, (f"a{EVIL}", f"b{EVIL}"))
    said = comparison_format.document(compared)
    check_terminal(terminal.render(said))
    check_markdown(markdown.render(said))
    check_page(comparison_page(compared, *sides))
    check_terminal(encode(compared).decode())


def test_what_is_shown_stays_readable() -> None:
    assert visible("\x1b[31mred\x1b[0m") == r"\x1b[31mred\x1b[0m"
    words = "naïve 训练 🙂\ta"
    assert visible(f"{words}\r\nb") == f"{words}\nb"
    assert visible("\u202e\U000e0041\udc80") == r"\u202e\U000e0041\udc80"
    assert clean(clean("\x07\t\x9b")) == clean("\x07\t\x9b")


def report_with(diff: str, folder: Path) -> Path:
    report = SAMPLES["loader_bound"]()
    recommended = dataclasses.replace(
        report.recommendation, patch=diff, patch_folder=str(folder), rejected_patches=[]
    )
    run = folder / "torchdoctor-runs" / "run"
    run.mkdir(parents=True)
    evil: Report = dataclasses.replace(report, recommendation=recommended)
    write_record(evil, run / "report.json")
    return run


DIFF = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = '\x1b[2J\u202e'\r\n+a = '\x9b\t1'\r\n"


def test_a_printed_diff_is_exact_on_a_pipe_and_escaped_on_a_terminal(tmp_path: Path) -> None:
    run = report_with(DIFF, tmp_path)
    piped = commands.torchdoctor("patch", run, cwd=tmp_path, text=False)
    assert piped.returncode == 0 and piped.stdout == DIFF.encode()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "torchdoctor", "patch", str(run)]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=tmp_path)
    os.close(theirs)
    shown = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # Linux says so that the other end is closed
            read = b""
        if not read:
            break
        shown += read
    os.close(ours)
    assert process.wait() == 0
    text = shown.decode().replace("\r\n", "\n")
    check_terminal(text)
    assert r"-a = '\x1b[2J\u202e'" in text


def test_an_error_shows_a_name_with_its_escapes(tmp_path: Path) -> None:
    result = commands.torchdoctor("report", tmp_path / "\x1b[2Jgone", cwd=tmp_path)
    assert result.returncode == 2
    check_terminal(result.stderr)


def test_a_command_to_copy_quotes_what_a_report_calls_a_fix() -> None:
    report = SAMPLES["loader_bound"]()
    recommended = report.recommendation
    evil = [dataclasses.replace(fix, fix="x; touch y") for fix in recommended.fixes]
    evil = [dataclasses.replace(fix, edit=DIFF) for fix in evil]
    offered = dataclasses.replace(recommended, fixes=[], also_offered=evil[:1])
    report = dataclasses.replace(report, recommendation=offered, run_folder="/r")
    shown = commands.told(rendered(report, "terminal"))
    patches = [command for command in shown if "patch" in command]
    assert patches and all(command[-2:] == ["--fixes", "x; touch y"] for command in patches)


def test_a_change_to_be_copied_keeps_its_tabs(tmp_path: Path) -> None:
    """The page and the Markdown held spaces, and `git apply` found no such lines."""
    report = SAMPLES["loader_bound"]()
    edit = "-\ta = 1\n+\ta = 2\n"
    fixes = [dataclasses.replace(report.recommendation.fixes[0], edit=edit)]
    recommended = dataclasses.replace(report.recommendation, fixes=fixes, patch=edit)
    report = dataclasses.replace(report, recommendation=recommended)
    assert edit in rendered(report, "markdown")
    page = rendered(report, "html")
    in_script = json.dumps(edit.strip())[1:-1]
    assert edit.strip() in page and in_script in page


def test_a_page_shows_lines_of_no_file_but_python_sources(tmp_path: Path) -> None:
    secret, source = tmp_path / "secret", tmp_path / "source.py"
    for file in (secret, source):
        file.write_text("known\nhidden\n")
    assert _around(str(secret), 1, "known") == [(1, "known")]
    assert _around(str(source), 1, "known") == [(1, "known"), (2, "hidden")]
