"""A document and its pictures as one HTML file: style and scripts are those in `page/`."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from torchdoctor.reports import document as blocks
from torchdoctor.reports.document import Block, Document, Section
from torchdoctor.reports.pictures import Picture
from torchdoctor.schema import Note
from torchdoctor.schema.figures import clean, says_something, visible

_FOLDER = Path(__file__).parent / "page"
# The browser itself refuses to load anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_COMMAND = "   "  # between words and the command that they introduce


def render(document: Document, pictures: Sequence[Picture] = ()) -> str:
    """Return the document as a complete HTML page."""
    subject = f"<span>{_text(document.subject)}</span>" if document.subject else ""
    drawn = [picture for picture in pictures if picture.drawn is not None]
    links = [(picture.key, picture.title) for picture in drawn]
    links += [("details", "All figures and conditions")] if document.details else []
    contents = "".join(f'<li><a href="#{key}">{_text(title)}</a></li>' for key, title in links)
    left_out = [
        f"<li><b>{_text(picture.title)}:</b> {_text(picture.missing)}</li>"
        for picture in pictures
        if picture.drawn is None
    ]
    body = [
        f"<header><h1>{_text(document.title)}</h1>{subject}</header>",
        '<main><div id="answer">',
        *map(_section, document.screen),
        "</div>",
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav>' if links else "",
        *(
            f'<figure id="{picture.key}"><h2>{_text(picture.title)}</h2><div class="drawing"></div>'
            f"<figcaption>{_text(picture.caption)}</figcaption></figure>"
            for picture in drawn
        ),
        f'<ul class="missing" id="left-out">{"".join(left_out)}</ul>' if left_out else "",
        f'<div id="details"><h2>{links[-1][1]}</h2>' if document.details else "<div>",
        *map(_folded, document.details),
        "</div></main>",
    ]
    figures = json.dumps({picture.key: picture.drawn for picture in drawn}).replace("<", "\\u003c")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>torchdoctor: {_text(document.summary)}</title>",
            f"<style>{_file('uPlot.min.css')}{_file('page.css')}</style></head><body>",
            *filter(None, body),
            f'<script type="application/json" id="figures">{figures}</script>',
            f"<script>{_file('uPlot.iife.min.js')}</script>" if drawn else "",
            f"<script>{_file('page.js')}</script></body></html>\n",
        ]
    )


def _file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _folded(section: Section) -> str:
    inner = "\n".join(map(_written, section.blocks))
    return f"<details><summary>{_text(section.title)}</summary>{inner}</details>"


def _section(section: Section) -> str:
    title = f"<h2>{_text(section.title)}</h2>" if section.title else ""
    inner = "\n".join(map(_written, section.blocks)).replace("--details", "see below")
    return f"<section>{title}{inner}</section>"


def _text(text: str) -> str:
    return escape(clean(text))


def _class(tone: str) -> str:
    return f' class="{escape(tone)}"' if tone else ""


def _written(block: Block) -> str:
    match block:
        case blocks.Sentence():
            words, _, command = block.text.partition(_COMMAND)
            shown = f" <code>{_text(command.strip())}</code>" if command else ""
            return f"<p{_class(block.tone)}>{_text(words)}{shown}</p>"
        case Note():
            beware = "<b>Beware:</b> " if block.severity == "beware" else ""
            return f"<ul{_class(block.severity)}><li>{beware}{_text(block.sentence)}</li></ul>"
        case blocks.KeyFigures():
            rows = "".join(
                f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in block.rows
            )
            title = f"<b>{_text(block.title)}</b> <span>{_text(block.figure)}</span>"
            rows = f"<dl>{rows}</dl>" if rows else ""
            return f'<div class="key-figures {escape(block.tone)}"><p>{title}</p>{rows}</div>'
        case blocks.Table():
            return _table(block)
        case blocks.Bars():
            return _bars(block)
        case blocks.Code():
            language, code = escape(block.language), escape(visible(block.text))  # its tabs stay
            return f'<pre class="{language}" tabindex="0"><code>{code}</code></pre>'


def _table(block: blocks.Table) -> str:
    marked = any(row.interval is not None for row in block.rows)
    columns = [f'<th scope="col">{_text(name)}</th>' for name in block.columns]
    if marked:
        columns.insert(2, '<th class="mark"></th>')
    rows = ""
    for row in block.rows:
        cells = [f"<td>{_text(cell)}</td>" for cell in row.cells]
        if marked:
            ends = ""
            drawn = row.interval
            if drawn is not None and says_something(drawn):
                ends = f' data-interval="{drawn.low} {drawn.estimate} {drawn.high}"'
            cells.insert(2, f'<td class="mark"{ends}></td>')
        rows += f"<tr{_class(row.tone)}>{''.join(cells)}</tr>"
    head = f"<thead><tr>{''.join(columns)}</tr></thead>"
    return f'<div class="wide" tabindex="0"><table>{head}<tbody>{rows}</tbody></table></div>'


def _bars(block: blocks.Bars) -> str:
    whole = ", ".join(f"{bar.label} {bar.text}" for bar in block.bars)
    parts = legend = ""
    for bar in block.bars:
        key = escape(bar.key)
        parts += f'<span class="{key}" style="width:{100 * bar.share:.2f}%"></span>'
        legend += f'<li><span class="key {key}"></span>{_text(f"{bar.text} {bar.label}")}</li>'
    drawn = f'<div class="bar" role="img" aria-label="{_text(whole)}">{parts}</div>'
    return f'{drawn}<ul class="legend">{legend}</ul>'
