"""The report for a terminal: at most 80 columns, readable without colour and when piped."""

from __future__ import annotations

import io

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from torchdoctor.records import RecommendedFix, Report
from torchdoctor.reports import content, wording
from torchdoctor.reports.figures import fix_with_settings

WIDTH = 80
_BAR = 60
_COLOURS = {
    "data_loader": "red",
    "memcpy": "yellow",
    "memset": "bright_yellow",
    "communication": "magenta",
    "gpu": "green",
    "runtime": "cyan",
    "cpu": "blue",
    "other": "bright_black",
}
# Told apart without colour too.
_FILLS = {
    "data_loader": "#",
    "memcpy": "=",
    "memset": "_",
    "communication": "~",
    "gpu": "*",
    "runtime": "+",
    "cpu": ":",
    "other": ".",
}
_ANSWERS = {"yes": "bold", "no": "dim"}
_GROUP_STYLES = {"faster": "green", "changed": "yellow", "slower": "dim", "same": "dim"}


def print_report(report: Report) -> None:
    """Print to standard output, as wide as the terminal up to 80 columns."""
    console = Console()
    console = Console(width=min(console.width, WIDTH), highlight=False, emoji=False)
    _print(console, report)


def render(report: Report, width: int = WIDTH) -> str:
    """The report as plain text without colour."""
    stream = io.StringIO()
    _print(
        Console(file=stream, width=width, highlight=False, emoji=False, color_system=None), report
    )
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _print(console: Console, report: Report) -> None:
    for title, body in _sections(report, console.width):
        if title:
            console.print()
            console.print(Text(title, style="bold underline"))
        console.print(body)
    console.print()


def _sections(report: Report, width: int) -> list[tuple[str, RenderableType]]:
    found: list[tuple[str, RenderableType]] = [("", Text(wording.verdict(report), style="bold"))]

    def add(title: str, body: RenderableType | None) -> None:
        if body is not None:
            found.append((title, body))

    add("Why: the path through the tree", _path(report))
    add("Where a step's time goes", _time(report, width))
    add("What was found", _findings(report))
    add("What was tried, measured side by side", _trials(report))
    add("Not measured", _not_measured(report))
    add("What to change", _changes(report, report.recommendation.fixes))
    add("All together", _together(report))
    add("Also worth doing, not measured", _changes(report, report.recommendation.also_offered))
    add("Doubts", _listed(report.doubts))
    add("How to reproduce", _listed(report.reproduce, bullet="$"))
    add("Measured on", _machine(report))
    return found


def _path(report: Report) -> RenderableType | None:
    rows = content.path_rows(report)
    if not rows:
        return None
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows:
        style = _ANSWERS.get(row.answer, "")
        figure = "" if row.answer in ("no GPU", "not measured") else row.figure
        table.add_row(Text(row.question, style=style), Text(row.answer, style=style), Text(figure))
    return Padding(table, (0, 0, 0, 2))


def _time(report: Report, width: int) -> RenderableType | None:
    rows = content.time_rows(report)
    if not rows:
        return None
    length = min(_BAR, width - 4)
    bar, legend = Text("  "), []
    drawn, exact = 0, 0.0
    for row in rows:
        exact += row.share * length
        cells = max(round(exact) - drawn, 0)
        drawn += cells
        fill, colour = _FILLS.get(row.key, "."), _COLOURS.get(row.key, "")
        bar.append(fill * cells, style=colour)
        line = Text("  ")
        line.append(f"{fill} ", style=colour)
        line.append(f"{row.text:>6}  {row.label}")
        legend.append(line)
    lines: list[RenderableType] = [bar, *legend]
    for text in (content.phase_line(report), _one_line(report)):
        if text:
            lines.append(Padding(Text(text), (0, 0, 0, 2)))
    return Group(*lines)


def _one_line(report: Report) -> str:
    parts = [f"step {wording.step_time(report)}" if wording.step_time(report) else ""]
    if report.steps is not None:
        parts.append(report.steps.how_found)
    return "\n".join(part for part in parts if part)


def _findings(report: Report) -> RenderableType | None:
    rows = content.finding_rows(report)
    if not rows:
        return None
    lines: list[RenderableType] = []
    for row in rows:
        head = Text("  ")
        head.append(row.check, style="bold" if row.severity == "high" else "")
        for part in (row.share, row.where):
            if part:
                head.append(f"  {part}")
        lines.append(head)
        lines += [Padding(Text(sentence, style="dim"), (0, 0, 0, 4)) for sentence in row.evidence]
    return Group(*lines)


def _trials(report: Report) -> RenderableType | None:
    groups = content.trial_groups(report)
    if not groups:
        return Text(f"  {wording.untried(report)}") if report.no_trials_reason else None
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for name in ("fix", "speed-up (95 %)", "training", "memory", "risk"):
        table.add_column(name, justify="right" if name in ("memory", "risk") else "left")
    for group in groups:
        table.add_row(Text(group.title, style="italic"))
        for row in group.rows:
            name = f"  {row.fix}" + (f"\n    {row.settings}" if row.settings else "")
            table.add_row(
                Text(name),
                Text(row.speedup, no_wrap=True),
                Text(row.training),
                Text(row.memory),
                Text(row.risk),
                style=_GROUP_STYLES.get(group.key, ""),
            )
    notes = [Padding(Text(note), (0, 0, 0, 2)) for note in content.trial_notes(report)]
    legend = Text(f"{wording.TRAINING_LEGEND}; {wording.RISK_LEGEND}", style="dim")
    noise = wording.noise_floor(report)
    if noise:
        notes.append(Padding(Text(f"{content.A_A}: {noise}.", style="dim"), (0, 0, 0, 2)))
    return Group(table, *notes, Padding(legend, (0, 0, 0, 2)))


def _not_measured(report: Report) -> RenderableType | None:
    rows = content.not_measured(report)
    if not rows:
        return None
    lines = []
    for row in rows:
        text = Text()
        text.append(f"{', '.join(row.fixes)}", style="")
        text.append(f" ({row.verdict}): {row.reason}", style="dim")
        lines.append(Padding(text, (0, 0, 0, 2)))
    return Group(*lines)


def _changes(report: Report, fixes: list[RecommendedFix]) -> RenderableType | None:
    rows = content.changes(report, fixes)
    if not rows:
        return None
    lines: list[RenderableType] = []
    for number, row in enumerate(rows, 1):
        head = Text(f"  {number}. {row.title}", style="bold")
        if row.where:
            head.append(f"  {row.where}", style="not bold")
        lines.append(head)
        if row.is_diff:
            code = Syntax(row.code, "diff", background_color="default", word_wrap=True)
            lines.append(Padding(code, (0, 0, 0, 5)))
        else:
            lines.append(Padding(Text(row.code), (0, 0, 0, 5)))
    return Group(*lines)


def _together(report: Report) -> RenderableType | None:
    text = wording.together(report)
    if not text:
        return None
    names = " + ".join(fix_with_settings(x.fix, x.settings) for x in report.recommendation.fixes)
    return Padding(Text(f"{names}: {text}"), (0, 0, 0, 2))


def _listed(lines: list[str], bullet: str = "-") -> RenderableType | None:
    if not lines:
        return None
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row(bullet, Text(line))
    return Padding(table, (0, 0, 0, 2))


def _machine(report: Report) -> RenderableType:
    lines = [wording.machine(report.environment), wording.overhead(report)]
    if report.run_folder:
        lines.append(f"Everything that was recorded: {report.run_folder}")
    return Padding(Text("\n".join(line for line in lines if line)), (0, 0, 0, 2))
