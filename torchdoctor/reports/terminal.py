"""The report for a terminal: at most 80 columns, readable without colour and when piped."""

from __future__ import annotations

import io
import shlex
import sys

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from torchdoctor.reports import ceilings, content, headline, traced, tree_path, what_if, wording
from torchdoctor.reports.code_lines import code_lines, is_python
from torchdoctor.reports.failure import failure
from torchdoctor.reports.not_measured import told_and_named
from torchdoctor.reports.training_unknown import training_unknown
from torchdoctor.reports.trial_remarks import trial_remarks
from torchdoctor.reports.wrapping import with_whole_command
from torchdoctor.words import RecommendedFix, Report
from torchdoctor.words.figures import clean, fix_with_settings, shell_lines, shorten_left

WIDTH = 80
_BAR, _MARGIN = 60, 5
_NAMED = 10  # fixes that were refused and treat nothing of what was found; of more the number
_WIDE = 72  # below it, memory and risk give way so that no figure is cut
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
_AT_HAND = "--html FILE"  # of the commands that measure or diagnose
_ANSWERS = {"yes": "bold", "no": "dim"}
_GROUP_STYLES = {"faster": "green", "changed": "yellow", "slower": "dim", "same": "dim"}


def print_report(report: Report) -> None:
    """Print to standard output, as wide as the terminal up to 80 columns."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:  # a message or path may hold what the encoding has not
        reconfigure(errors="replace")
    console = Console()
    width = min(console.width, WIDTH)
    if console.is_terminal:
        _print(Console(width=width, highlight=False, emoji=False), report, _AT_HAND)
    elif sys.stdout is not None:  # not closed (>&-)
        # rich fills lines up with spaces, which a file or pipe should not get
        sys.stdout.write(render(report, width, _AT_HAND))


def render(report: Report, width: int = WIDTH, whole: str = "--format html") -> str:
    """The report as plain text without colour.

    Args:
        whole: the option that shows all of it as HTML, for the command at hand.
    """
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, emoji=False, color_system=None)
    _print(console, report, whole)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _print(console: Console, report: Report, whole: str) -> None:
    for title, body in _sections(report, console.width, whole):
        if title:
            console.print()
            console.print(Text(title, style="bold underline"))
        console.print(body, crop=False)
    console.print()


def _sections(report: Report, width: int, whole: str) -> list[tuple[str, RenderableType]]:
    verdict = with_whole_command(headline.verdict(report), width)
    found: list[tuple[str, RenderableType]] = [("", Text(verdict, style="bold"))]
    if failed := failure(report):
        found.append(("", Text(failed, style="bold red")))

    def add(title: str, body: RenderableType | None) -> None:
        if body is not None:
            found.append((title, body))

    add("Why: the path through the tree", _path(report))
    add("Where a step's time goes", _time(report, width))
    add("What was found", _findings(report, width))
    for title, texts in traced.sections(report):
        add(title, _listed(texts))
    add(ceilings.TITLE, _listed(ceilings.ceiling_lines(report)))
    add(what_if.TITLE, _listed(what_if.what_if_lines(report)))
    add(wording.tried(report), _trials(report, width))
    add("What to change", _changes(report, report.recommendation.fixes, width))
    add("All together", _together(report))
    for title, fixes in content.offered(report):
        add(title, _changes(report, fixes, width))
    add("Not measured", _not_measured(report, whole))
    add("Doubts", _listed(report.doubts))
    commands = ["\n".join(shell_lines(clean(line), width - 4)) for line in report.reproduce]
    add("How to reproduce", _listed(commands, bullet="$"))
    add("Measured on", _machine(report))
    return found


def _path(report: Report) -> RenderableType | None:
    rows = tree_path.path_rows(report)
    if not rows:
        return None
    question, answer = (max(len(getattr(r, key)) for r in rows) for key in ("question", "answer"))
    lines: list[RenderableType] = []
    for row in rows:
        style = _ANSWERS.get(row.answer, "")
        figure = "" if row.answer in ("no GPU", "not measured") else row.figure
        line = Text(f"{row.question:<{question}}  {row.answer:<{answer}}", style=style)
        line.append(f"  {figure}", style="")
        lines.append(Padding(line, (0, 0, 0, 2)))
        if figure:
            lines.append(Padding(Text(row.basis, style="dim"), (0, 0, 0, 4)))
    if rule := tree_path.path_rule(report):
        lines.append(Padding(Text(rule), (0, 0, 0, 2)))
    return Group(*lines)


def _time(report: Report, width: int) -> RenderableType | None:
    rows = content.time_rows(report)
    if not rows:
        return None
    length = min(_BAR, width - 4)
    bar, legend = Text("  "), []
    drawn, exact = 0, 0.0
    for row in rows:
        exact += min(max(row.share, 0.0), 1.0) * length  # a file may say anything
        cells = max(round(exact) - drawn, 0)
        drawn += cells
        fill, colour = _FILLS.get(row.key, "."), _COLOURS.get(row.key, "")
        bar.append(fill * cells, style=colour)
        line = Text("  ")
        line.append(f"{fill} ", style=colour)
        line.append(f"{row.text:>6}  {row.label}")
        if row.ceiling:
            line.append(f"  ({row.ceiling})", style="dim")
        legend.append(line)
    lines: list[RenderableType] = [bar, *legend]
    phases = content.phase_line(report)
    by_phase = f"by phase: {phases}" if phases else ""
    for text in (by_phase, wording.shares_of(report), _one_line(report)):
        if text:
            lines.append(Padding(Text(text), (0, 0, 0, 2)))
    return Group(*lines)


def _one_line(report: Report) -> str:
    parts = [wording.step_time(report), wording.how_steps_were_found(report)]
    return "\n".join(part for part in parts if part)


def _findings(report: Report, width: int) -> RenderableType | None:
    rows = content.finding_rows(report)
    if not rows:
        return None
    lines: list[RenderableType] = []
    for row in rows:
        head = Text("  ")
        head.append(row.check, style="bold" if row.severity == "high" else "")
        if row.share:
            head.append(f"  {row.share}")
        if row.where and len(head) + 2 + len(row.where) <= width:
            head.append(f"  {row.where}")
        lines.append(head)
        if row.where and row.where not in head.plain:
            lines.append(Text(f"    {shorten_left(row.where, width - 4)}"))
        lines += [Padding(Text(sentence, style="dim"), (0, 0, 0, 4)) for sentence in row.evidence]
    if order := content.findings_order(report):
        lines.append(Padding(Text(order, style="dim"), (0, 0, 0, 2)))
    return Group(*lines)


def _trials(report: Report, width: int) -> RenderableType | None:
    groups = content.trial_groups(report)
    if not groups:
        if not report.no_trials_reason:
            return None
        return Padding(Text(with_whole_command(wording.untried(report), width - 2)), (0, 0, 0, 2))
    notes = [Padding(Text(note), (0, 0, 0, 2)) for note in trial_remarks(report)]
    notes += [Padding(Text(why), (0, 0, 0, 2)) for why in training_unknown(report)]
    noise = wording.noise_floor(report)
    if noise:
        notes.append(Padding(Text(f"{content.A_A}: {noise}.", style="dim"), (0, 0, 0, 2)))
    if any(group.key != "noise" for group in groups):
        for legend in (wording.TRAINING_LEGEND, wording.RISK_LEGEND if width >= _WIDE else ""):
            notes += [Padding(Text(legend, style="dim"), (0, 0, 0, 2))] if legend else []
    return Group(_trial_table(groups, width), *notes)


def _trial_table(groups: list[content.TrialGroup], width: int) -> Table:
    wide = width >= _WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("fix", overflow="fold")
    for name in ("speed-up (95 %)", "training", *(("memory", "risk") if wide else ())):
        table.add_column(
            name, no_wrap=True, justify="right" if name in ("memory", "risk") else "left"
        )
    for group in groups:
        table.add_row(Text(group.title, style="italic"))
        for row in group.rows:
            settings = [Padding(Text(row.settings), (0, 0, 0, 4))] if row.settings else []
            cells = [Text(row.speedup), Text(row.training)]
            cells += [Text(row.memory), Text(row.risk)] if wide else []
            name = Group(Padding(Text(row.fix), (0, 0, 0, 2)), *settings)
            table.add_row(name, *cells, style=_GROUP_STYLES.get(group.key, ""))
    return table


def _not_measured(report: Report, whole: str) -> RenderableType | None:
    rows, named = told_and_named(report)
    if not rows and not named:
        return None
    lines = []
    for row in rows:
        text = Text()
        text.append(f"{', '.join(row.fixes)}", style="")
        text.append(f" ({row.verdict}): {row.reason}", style="dim")
        lines.append(Padding(text, (0, 0, 0, 2)))
    if named:
        others = Text(", ".join(named) if len(named) <= _NAMED else f"{len(named)} other fixes")
        others.append(
            " (refused): They treat nothing of what was found, or cannot apply here; each reason "
            f"stands in report.json and with {whole}.",
            style="dim",
        )
        lines.append(Padding(others, (0, 0, 0, 2)))
    return Group(*lines)


def _changes(report: Report, fixes: list[RecommendedFix], width: int) -> RenderableType | None:
    rows = content.changes(report, fixes)
    if not rows:
        return None
    lines: list[RenderableType] = []
    for number, row in enumerate(rows, 1):
        head = Text(f"  {number}. {row.title}", style="bold")
        beside = len(head) + 2 + len(row.where) <= width
        if row.where and beside:
            head.append(f"  {row.where}", style="not bold")
        lines.append(head)
        if row.where and not beside:
            lines.append(Text(f"     {shorten_left(row.where, width - 5)}"))
        if row.is_diff:
            lines.append(_diff(row.code))
        else:
            lines += _code(row.code, width)
        lines += [Padding(Text(note, style="dim"), (0, 0, 0, _MARGIN)) for note in row.notes]
    for command in content.patch_commands(report, fixes):
        lines.append(_whole(f"{' ' * _MARGIN}$ {clean(command)}"))
    return Group(*lines)


def _diff(code: str) -> Text:
    """A diff as it is, neither indented nor broken: a line in two would be another diff."""
    text = Syntax("", "diff", background_color="default").highlight(code)
    text.rstrip()
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _whole(text: str) -> Text:
    """Lines to be copied, wider than the terminal where they have to be."""
    return Text(text, no_wrap=True, overflow="ignore")


def _code(code: str, width: int) -> list[RenderableType]:
    """What to write; a word of Python that is longer than the line stays whole to be copied."""
    lines, whole = code_lines(code, width - _MARGIN), is_python(code)
    if not whole:
        return [Padding(Text("\n".join(lines)), (0, 0, 0, _MARGIN))]
    text = "\n".join(" " * _MARGIN * bool(line) + line for line in lines)
    return [_whole(text)]


def _together(report: Report) -> RenderableType | None:
    text = wording.together(report)
    if not text:
        return None
    names = " + ".join(fix_with_settings(x.fix, x.settings) for x in report.recommendation.fixes)
    lines = [f"{names}: {text}"]
    if patched := wording.patch(report):
        lines.append(patched[0].upper() + patched[1:])
    return Padding(Text("\n".join(lines)), (0, 0, 0, 2))


def _listed(lines: list[str], bullet: str = "-") -> RenderableType | None:
    if not lines:
        return None
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row(bullet, Text(clean(line)))
    return Padding(table, (0, 0, 0, 2))


def _machine(report: Report) -> RenderableType | None:
    lines = [wording.machine(report.environment), wording.overhead(report)]
    if report.run_folder:
        lines.append(f"Everything that was recorded: {report.run_folder}")
    if report.memory_snapshot:
        viewer = "open it at https://pytorch.org/memory_viz"
        lines.append(f"GPU memory, allocation by allocation ({viewer}): {report.memory_snapshot}")
    command = " ".join(clean(word) for word in report.workload.command)
    if not any(lines) and shlex.join(report.workload.command) in report.reproduce:
        return None
    return Padding(Text("\n".join(line for line in (command, *lines) if line)), (0, 0, 0, 2))
