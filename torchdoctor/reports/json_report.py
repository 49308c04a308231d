"""The report as JSON: the fixed names of docs/report.schema.json."""

from __future__ import annotations

from torchdoctor.words import Report
from torchdoctor.words.record_files import encode_report


def render(report: Report) -> str:
    """report.json as text, ending with a newline."""
    text = encode_report(report).decode("utf-8")
    return text if text.endswith("\n") else text + "\n"
