"""A document as one HTML file: nothing is loaded from elsewhere, light and dark."""

from html import escape

from torchdoctor.reports import document as blocks
from torchdoctor.reports.document import Block, Document, Section
from torchdoctor.words import Note
from torchdoctor.words.figures import clean

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8882;--good:#1a7f37;--bad:#b35900}
@media(prefers-color-scheme:dark){:root{--good:#4ac26b;--bad:#e09b3d}}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1rem;letter-spacing:.05em;opacity:.8}
h2{font-size:1.05rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.3rem .8rem .3rem 0;vertical-align:top}
th{font-weight:600;border-bottom:1px solid var(--line)}
.strong,.good,.bad{font-weight:600}.good{color:var(--good)}.bad{color:var(--bad)}
section:first-of-type p.strong,p.good{font-size:1.35rem;line-height:1.35}
.bar{display:flex;height:1.4rem;border-radius:.3rem;overflow:hidden;margin:.5rem 0}
.key{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;margin-right:.4rem}
ul.legend{list-style:none;padding:0}
pre{background:var(--soft);padding:.8rem;overflow-x:auto;border-radius:.3rem}
.soft{opacity:.75;font-size:.9rem}
.data_loader{background:#d1495b}.memcpy{background:#edae49}.memset{background:#f4d35e}
.communication{background:#9b5de5}.gpu{background:#43aa8b}.runtime{background:#4d9de0}
.cpu{background:#30638e}.other{background:#9a9a9a}
"""


def render(document: Document) -> str:
    """Return the document as a complete HTML page."""
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>torchdoctor: {_text(document.summary)}</title><style>{_STYLE}</style></head><body>"
    )
    heading = " · ".join(part for part in (document.title, document.subject) if part)
    body = ["<main>", f"<h1>{_text(heading)}</h1>"]
    body += [_section(section) for section in (*document.screen, *document.details)]
    return head + "\n".join([*body, "</main>"]) + "</body></html>\n"


def _section(section: Section) -> str:
    title = f"<h2>{_text(section.title)}</h2>" if section.title else ""
    return "\n".join(["<section>", title, *map(_written, section.blocks), "</section>"])


def _text(text: str) -> str:
    return escape(clean(text))


def _class(tone: str) -> str:
    return f' class="{escape(tone)}"' if tone else ""


def _written(block: Block) -> str:
    match block:
        case blocks.Sentence():
            return f"<p{_class(block.tone)}>{_text(block.text)}</p>"
        case Note():
            beware = "<b>Beware:</b> " if block.severity == "beware" else ""
            return f"<ul><li>{beware}{_text(block.sentence)}</li></ul>"
        case blocks.KeyFigures():
            rows = "".join(f"<li>{_text(' '.join(row))}</li>" for row in block.rows)
            title = _text(f"{block.title} {block.figure}".strip())
            return f"<p{_class(block.tone)}>{title}</p>" + (f"<ul>{rows}</ul>" if rows else "")
        case blocks.Table():
            head = "".join(f'<th scope="col">{_text(name)}</th>' for name in block.columns)
            rows = "".join(
                f"<tr{_class(row.tone)}>"
                f"{''.join(f'<td>{_text(cell)}</td>' for cell in row.cells)}</tr>"
                for row in block.rows
            )
            return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        case blocks.Bars():
            return _bars(block)
        case blocks.Code():
            return f"<pre><code>{_text(block.text)}</code></pre>"


def _bars(block: blocks.Bars) -> str:
    whole = ", ".join(f"{bar.label} {bar.text}" for bar in block.bars)
    parts = legend = ""
    for bar in block.bars:
        key = escape(bar.key)
        note = f' <span class="soft">{_text(bar.note)}</span>' if bar.note else ""
        parts += f'<span class="{key}" style="width:{100 * bar.share:.2f}%"></span>'
        legend += (
            f'<li><span class="key {key}"></span>{_text(f"{bar.text} {bar.label}")}{note}</li>'
        )
    drawn = f'<div class="bar" role="img" aria-label="{_text(whole)}">{parts}</div>'
    return f'{drawn}<ul class="legend">{legend}</ul>'
