"""Tables in plain text within 80 columns: they give way where a line would be too long."""

from __future__ import annotations

from torchdoctor.reports.wrapping import WIDTH, wrapped

_NAME = 30  # widest first cell of a table
_TOLD = 14  # narrower, a name that is cut says nothing ("aten...")


def laid_out(table: list[list[str]]) -> list[str]:
    """Columns side by side; the first gives way where a line would be too long."""
    if not table:
        return []
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    rest = sum(widths[1:]) + 2 * len(widths)
    longest, widths[0] = widths[0], max(min(widths[0], _NAME, WIDTH - rest), 1)
    if rest + widths[0] > WIDTH or widths[0] < min(longest, _TOLD):
        return _stacked(table)
    return [
        (
            "  " + "  ".join(_cut(cell, w).ljust(w) for cell, w in zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _stacked(table: list[list[str]]) -> list[str]:
    """One entry below the other, each with the names of its columns: for wide cells."""
    lines = []
    for row in table[1:]:
        cells = [f"{name} {cell}" for name, cell in zip(table[0][1:], row[1:], strict=True)]
        lines.append(f"  {_cut(row[0], WIDTH - 2)}")
        lines += wrapped("; ".join(cells), "    ", "    ")
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."[:width]
