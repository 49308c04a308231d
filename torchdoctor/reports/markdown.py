"""The report as Markdown, for a pull request or an issue."""

from __future__ import annotations

from torchdoctor.reports import ceilings, content, headline, traced, tree_path, what_if, wording
from torchdoctor.reports.failure import failure
from torchdoctor.reports.not_measured import not_measured
from torchdoctor.reports.training_unknown import training_unknown
from torchdoctor.words import RecommendedFix, Report
from torchdoctor.words.figures import clean


def render(report: Report) -> str:
    """The report as GitHub-flavoured Markdown."""
    return "\n\n".join(_parts(report)) + "\n"


def sections(report: Report) -> list[tuple[str, str]]:
    """The same in pieces of one heading each: (its title, Markdown with the heading)."""
    found = [("Verdict", "")]
    for part in _parts(report):
        if part.startswith("### "):
            title = part.partition("\n")[0].removeprefix("### ")
            found.append((title, part))
        else:
            title, text = found[-1]
            found[-1] = (title, f"{text}\n\n{part}".strip("\n"))
    return found


def _parts(report: Report) -> list[str]:
    """Blocks of Markdown; one with a heading begins with it."""
    parts = [f"## torchdoctor\n\n**{_escape(headline.verdict(report))}**"]
    if failed := failure(report):
        parts.append(f"**{_escape(failed)}**")
    path = [
        [row.question, row.answer, row.figure, row.basis] for row in tree_path.path_rows(report)
    ]
    parts += _table("Why", ["question", "answer", "figure", "what it is"], path)
    if rule := tree_path.path_rule(report):
        parts.append(rule)
    times = content.time_rows(report)
    tried = any(row.ceiling for row in times)
    parts += _table(
        "Where a step's time goes",
        ["part", "share", "tried"][: 2 + tried],
        [[row.label, row.text, row.ceiling][: 2 + tried] for row in times],
    )
    told = [wording.step_time(report), wording.shares_of(report)]
    if any(told):
        parts.append(_escape(". ".join(text for text in told if text)))
    findings = [
        [row.check, row.share, row.where, " ".join(row.evidence)]
        for row in content.finding_rows(report)
    ]
    parts += _table("What was found", ["check", "share", "where", "evidence"], findings)
    parts += [order] if (order := content.findings_order(report)) else []
    for title, found in (
        *traced.sections(report),
        (ceilings.TITLE, ceilings.ceiling_lines(report)),
        (what_if.TITLE, what_if.what_if_lines(report)),
    ):
        if found:
            lines = "\n".join(f"- {_escape(line)}" for line in found)
            parts.append(f"### {title}\n\n{lines}")
    trials = [
        [row.fix, row.settings, row.speedup, row.training, row.memory, row.risk, group.title]
        for group in content.trial_groups(report)
        for row in group.rows
    ]
    columns = ["fix", "settings", "speed-up (95 %)", "training", "memory", "risk", "verdict"]
    parts += _table(wording.tried(report), columns, trials)
    parts += [_escape(why) for why in training_unknown(report)]
    parts += _changes("What to change", report, report.recommendation.fixes)
    if wording.together(report):
        parts.append(f"**All together:** {_escape(wording.together(report))}")
    if wording.patch(report):
        parts.append(_escape(wording.patch(report)))
    for title, fixes in content.offered(report):
        parts += _changes(title, report, fixes)
    rest = [[", ".join(x.fixes), x.verdict, x.reason] for x in not_measured(report)]
    parts += _table("Not measured", ["fix", "", "reason"], rest)
    if report.doubts:
        parts.append("### Doubts\n\n" + "\n".join(f"- {_escape(x)}" for x in report.doubts))
    if report.reproduce:
        parts.append("### How to reproduce\n\n```\n" + "\n".join(report.reproduce) + "\n```")
    if machine := wording.machine(report.environment):
        parts.append(_escape(f"Measured on {machine}."))
    return parts


def _table(title: str, columns: list[str], rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    lines += [f"| {' | '.join(_escape(cell) for cell in row)} |" for row in rows]
    return [f"### {title}\n\n" + "\n".join(lines)]


def _changes(title: str, report: Report, fixes: list[RecommendedFix]) -> list[str]:
    rows = content.changes(report, fixes)
    if not rows:
        return []
    blocks = [
        f"{number}. **{_escape(row.title)}** {_escape(row.where)}\n\n"
        f"````{'diff' if row.is_diff else 'python'}\n{row.code}\n````"
        + "".join(f"\n\n{_escape(note)}" for note in row.notes)
        for number, row in enumerate(rows, 1)
    ]
    if commands := content.patch_commands(report, fixes):
        blocks.append("```\n" + "\n".join(map(clean, commands)) + "\n```")
    return [f"### {title}\n\n" + "\n\n".join(blocks)]


def _escape(text: str) -> str:
    # Entities where the Markdown of TensorBoard's TEXT tab knows no backslash.
    for character, entity in (("&", "&amp;"), ("|", "&#124;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    for character in "\\*_`":
        text = text.replace(character, f"\\{character}")
    return text.replace("\n", " ")
