"""The report as one HTML file: nothing is loaded from elsewhere, light and dark."""

from __future__ import annotations

import re
from html import escape

from torchdoctor.reports import ceilings, content, headline, traced, tree_path, what_if, wording
from torchdoctor.reports.failure import failure
from torchdoctor.reports.not_measured import not_measured
from torchdoctor.reports.training_unknown import training_unknown
from torchdoctor.reports.trial_remarks import trial_remarks
from torchdoctor.words import RecommendedFix, Report
from torchdoctor.words.figures import clean

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8882;--good:#1a7f37;--bad:#b35900}
@media(prefers-color-scheme:dark){:root{--good:#4ac26b;--bad:#e09b3d}}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1rem;letter-spacing:.05em;text-transform:uppercase;opacity:.7}
.verdict{font-size:1.35rem;font-weight:600;line-height:1.35}
h2{font-size:1.05rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.3rem .8rem .3rem 0;vertical-align:top}
th{font-weight:600;border-bottom:1px solid var(--line)}
tr.group td{font-style:italic;padding-top:.8rem}
tr.faster{color:var(--good)}tr.changed{color:var(--bad)}
.bar{display:flex;height:1.4rem;border-radius:.3rem;overflow:hidden;margin:.5rem 0}
.key{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;margin-right:.4rem}
pre{background:var(--soft);padding:.8rem;overflow-x:auto;border-radius:.3rem}
.soft{opacity:.75;font-size:.9rem}
.data_loader{background:#d1495b}.memcpy{background:#edae49}.memset{background:#f4d35e}
.communication{background:#9b5de5}.gpu{background:#43aa8b}.runtime{background:#4d9de0}
.cpu{background:#30638e}.other{background:#9a9a9a}
"""


def render(report: Report) -> str:
    """The report as a complete HTML document."""
    verdict = headline.verdict(report)
    body = [
        "<main>",
        "<h1>torchdoctor</h1>",
        f'<p class="verdict">{escape(verdict)}</p>',
        *([f"<p><strong>{escape(failed)}</strong></p>"] if (failed := failure(report)) else []),
        *_path(report),
        *_time(report),
        *_findings(report),
        *(line for title, texts in traced.sections(report) for line in _listed(title, texts)),
        *_listed(ceilings.TITLE, ceilings.ceiling_lines(report)),
        *_listed(what_if.TITLE, what_if.what_if_lines(report)),
        *_trials(report),
        *_changes("What to change", report, report.recommendation.fixes),
        *_together(report),
        *(line for part in content.offered(report) for line in _changes(part[0], report, part[1])),
        *_not_measured(report),
        *_listed("Doubts", report.doubts),
        *_reproduce(report),
        *_measured_on(report),
        "</main>",
    ]
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>torchdoctor: {escape(_title(report))}</title><style>{_STYLE}</style></head><body>"
    )
    return head + "\n".join(body) + "</body></html>\n"


def _title(report: Report) -> str:
    """What slows training, in one sentence: a tab shows its beginning, a bookmark all of it."""
    return re.split(r"(?<=[.!?])\s", headline.cause(report), maxsplit=1)[0]


def _measured_on(report: Report) -> list[str]:
    machine = wording.machine(report.environment)
    told = [f"Measured on {machine}." if machine else "", wording.overhead(report)]
    text = " ".join(part for part in told if part)
    return [f'<p class="soft">{escape(text)}</p>'] if text else []


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"<section><h2>{escape(title)}</h2>", *lines, "</section>"] if lines else []


def _table(columns: list[str], rows: list[str]) -> list[str]:
    if not rows:
        return []
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    return [f"<table><thead><tr>{head}</tr></thead><tbody>", *rows, "</tbody></table>"]


def _row(cells: list[str], style: str = "") -> str:
    inner = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr class="{escape(style)}">{inner}</tr>'


def _path(report: Report) -> list[str]:
    rows = [
        _row([row.question, row.answer, row.figure, row.basis])
        for row in tree_path.path_rows(report)
    ]
    return _section(
        "Why: the path through the tree",
        [
            *_table(["question", "answer", "figure", "what it is"], rows),
            *(f"<p>{escape(rule)}</p>" for rule in [tree_path.path_rule(report)] if rule),
        ],
    )


def _time(report: Report) -> list[str]:
    rows = content.time_rows(report)
    if not rows:
        return []
    label = ", ".join(f"{row.label} {row.text}" for row in rows)
    parts = "".join(
        f'<span class="{row.key}" style="width:{100 * row.share:.2f}%"></span>' for row in rows
    )
    legend = "".join(
        f'<li><span class="key {row.key}"></span>{escape(row.text)} {escape(row.label)}'
        + (f' <span class="soft">{escape(row.ceiling)}</span></li>' if row.ceiling else "</li>")
        for row in rows
    )
    lines = [f'<div class="bar" role="img" aria-label="{escape(label)}">{parts}</div>']
    lines.append(f'<ul style="list-style:none;padding:0">{legend}</ul>')
    for text in (
        content.phase_line(report),
        wording.shares_of(report),
        wording.step_time(report),
    ):
        if text:
            lines.append(f'<p class="soft">{escape(text)}</p>')
    if found := wording.how_steps_were_found(report):
        lines.append(f'<p class="soft">{escape(found)}</p>')
    return _section("Where a step's time goes", lines)


def _findings(report: Report) -> list[str]:
    rows = [
        _row([row.check, row.share, row.where, " ".join(row.evidence)])
        for row in content.finding_rows(report)
    ]
    lines = _table(["check", "share", "where", "evidence"], rows)
    if order := content.findings_order(report):
        lines.append(f'<p class="soft">{escape(order)}</p>')
    return _section("What was found", lines)


def _trials(report: Report) -> list[str]:
    rows = []
    for group in content.trial_groups(report):
        rows.append(f'<tr class="group"><td colspan="6">{escape(group.title)}</td></tr>')
        for row in group.rows:
            cells = [row.fix, row.settings, row.speedup, row.training, row.memory, row.risk]
            rows.append(_row(cells, group.key))
    columns = ["fix", "settings", "speed-up (95 %)", "training", "memory", "risk"]
    lines = _table(columns, rows)
    lines += [f'<p class="soft">{escape(note)}</p>' for note in trial_remarks(report)]
    lines += [f'<p class="soft">{escape(why)}</p>' for why in training_unknown(report)]
    if rows:
        legend = f"{wording.TRAINING_LEGEND}; {wording.RISK_LEGEND}"
        lines.append(f'<p class="soft">{escape(legend)}</p>')
    elif report.no_trials_reason:
        lines.append(f"<p>{escape(wording.untried(report))}</p>")
    return _section(wording.tried(report), lines)


def _not_measured(report: Report) -> list[str]:
    rows = [_row([", ".join(row.fixes), row.verdict, row.reason]) for row in not_measured(report)]
    return _section("Not measured", _table(["fix", "", "reason"], rows))


def _changes(title: str, report: Report, fixes: list[RecommendedFix]) -> list[str]:
    lines = []
    for number, change in enumerate(content.changes(report, fixes), 1):
        lines.append(f"<p><b>{number}. {escape(change.title)}</b> {escape(change.where)}</p>")
        lines.append(f"<pre><code>{escape(change.code)}</code></pre>")
        lines += [f'<p class="soft">{escape(note)}</p>' for note in change.notes]
    for command in content.patch_commands(report, fixes):
        lines.append(f"<pre><code>{escape(clean(command))}</code></pre>")
    return _section(title, lines)


def _together(report: Report) -> list[str]:
    text = wording.together(report)
    lines = [line for line in (text, wording.patch(report)) if line]
    return _section("All together", [f"<p>{escape(line)}</p>" for line in lines])


def _listed(title: str, texts: list[str]) -> list[str]:
    items = [f"<li>{escape(text)}</li>" for text in texts]
    return _section(title, ["<ul>", *items, "</ul>"] if items else [])


def _reproduce(report: Report) -> list[str]:
    code = escape("\n".join(report.reproduce))
    return _section("How to reproduce", [f"<pre><code>{code}</code></pre>"] if code else [])
