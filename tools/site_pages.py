"""The site's generated files: `python tools/site_pages.py docs` writes them.

cli.md is made from the command line itself; the pictures of a terminal are first screens of reports
that real runs of the samples wrote, as tests/reports/workloads.json.gz stores them.
"""

from __future__ import annotations

import gzip
import inspect
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from torchdoctor.cli import front
from torchdoctor.reports import terminal
from torchdoctor.reports.formats import document
from torchdoctor.schema.errors import EXIT_CODES
from torchdoctor.schema.record_files import decode_report

STORED = Path(__file__).parent.parent / "tests" / "reports" / "workloads.json.gz"
PICTURES = {"first-screen": "slow_decode", "many-small-ops": "many_small_ops"}
_COLUMNS = 100
_FORMAT_AND_OUTPUT = (
    "`--format` is the form of an answer, `--output` where the result goes. A command that answers "
    "at once writes the answer to that file in place of the screen, by default in the form that "
    "the file's name ends with. `run`, `gate` and `watch` take minutes, and keep the screen: "
    "`--output` is their folder, which gets every form, of `run` and `watch` report.json and "
    "report.html, of `gate` gate.json, gate.md, gate.xml (JUnit) and report.html. Another form is "
    "a second command: `torchdoctor report FOLDER --output report.md`. What is no answer has "
    "options of its own: `--tensorboard`, `--annotate`, `--metrics-file`."
)
# Light letters on dark, readable on pages of either colour.
_THEME = TerminalTheme(
    (24, 28, 36),
    (222, 226, 232),
    [(60, 66, 78), (255, 123, 114), (126, 231, 135), (242, 204, 96), (121, 192, 255),
     (210, 168, 255), (118, 227, 234), (222, 226, 232)],
    [(145, 152, 165), (255, 161, 152), (156, 240, 163), (246, 219, 134), (165, 214, 255),
     (226, 197, 255), (151, 238, 243), (255, 255, 255)],
)  # fmt: skip


def pages() -> dict[str, str]:
    """Return every generated file by its path below docs/."""
    pictures = {f"images/{name}.svg": picture(script) for name, script in PICTURES.items()}
    return {"cli.md": command_line(), **pictures}


def picture(script: str) -> str:
    """Return the first screen of the stored run of a sample, as an SVG."""
    stored = json.loads(gzip.decompress(STORED.read_bytes()))[script]
    shown = document(decode_report(json.dumps(stored)), "/home/ada/torchdoctor")
    screen = terminal.render(shown, _COLUMNS, details=False, colours="truecolor")
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ torchdoctor run sample_workloads/{script}.py\n{screen}"))
    drawn = console.export_svg(title="torchdoctor", theme=_THEME, unique_id=script)
    # No letters from another server: the reader's own fixed-width font is as good.
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL).replace(
        "Fira Code, monospace", "ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace"
    )


def command_line() -> str:
    """Return the reference of all commands and their options."""
    group: Any = typer.main.get_command(front.app)
    lines = ["# Command line", "", "Generated from the commands themselves.", ""]
    lines += ["| command | what it does |", "| --- | --- |"]
    lines += [f"| [{name}](#{name}) | {_short(c)} |" for name, c in group.commands.items()]
    lines += ["", "Options of the script stand behind it, options of torchdoctor before it.", ""]
    lines += [_FORMAT_AND_OUTPUT, ""]
    for name, command in group.commands.items():
        lines += _command(name, command)
    lines += ["## Exit codes", "", "| code | meaning |", "| --- | --- |"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    yield from (f"## {name}", "")
    # One paragraph of the help each; what begins with the name is a way to call it.
    for paragraph in inspect.cleandoc(command.help or "").replace("\\[", "[").split("\n\n"):
        called = paragraph.startswith("torchdoctor ")
        text = " ".join(paragraph.replace("\f", "").split())
        yield from ((f"    {text}" if called else text), "")
    yield from ("| option | meaning | default |", "| --- | --- | --- |")
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        names = [*parameter.opts, *parameter.secondary_opts]
        option = parameter.param_type_name == "option"
        shown = ", ".join(f"`{n}`" for n in names) if option else f"`{parameter.name}`"
        default = parameter.default
        plain = isinstance(default, (str, int, float)) and not isinstance(default, bool)
        yield f"| {shown} | {_cell(parameter.help)} | {default if plain else ''} |"
    yield ""


def _short(command: Any) -> str:
    return _cell((command.help or "").split("\n\n")[0])


def _cell(text: str | None) -> str:
    return " ".join(
        (text or "").replace("\\[", "[").replace("|", "\\|").replace("<", "&lt;").split()
    )


def main(arguments: list[str]) -> int:
    """Write the files into a folder, usually docs."""
    if len(arguments) != 1:
        print("usage: site_pages.py FOLDER", file=sys.stderr)
        return 2
    for name, text in pages().items():
        path = Path(arguments[0]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
