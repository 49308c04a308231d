"""A comparison or a gate's result as text, through the document and its writers."""

from __future__ import annotations

from torchdoctor.reports import comparison, gate
from torchdoctor.reports import markdown as markdown_writer
from torchdoctor.reports import terminal as terminal_writer
from torchdoctor.reports.document import Document
from torchdoctor.schema.comparison import Comparison
from torchdoctor.schema.gate import GateReport


def _document(made: Comparison | GateReport) -> Document:
    room = gate if isinstance(made, GateReport) else comparison
    return room.document(made)


def terminal(made: Comparison | GateReport, details: bool = True, width: int = 100) -> str:
    return terminal_writer.render(_document(made), width, details)


def markdown(made: Comparison | GateReport) -> str:
    return markdown_writer.render(_document(made))
