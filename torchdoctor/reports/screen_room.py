"""How many lines of a terminal blocks take, so that what matters most has room."""

import math
from collections.abc import Sequence

from torchdoctor.reports.document import Block, Code, KeyFigures, Sentence

WIDTH = 76  # characters of a narrow screen within its margins
_HALF = 36  # characters of a cell of the key figures


def lines_on_screen(blocks: Sequence[Block]) -> int:
    """Return about how many lines blocks take on a narrow screen."""
    lines = 0
    for block in blocks:
        if isinstance(block, Sentence):
            lines += math.ceil(len(block.text) / WIDTH)
        elif isinstance(block, Code):
            lines += block.text.count("\n") + 1
        elif isinstance(block, KeyFigures):
            rows = [(block.title, block.figure), *block.rows]
            lines += sum(1 + any(len(cell) > _HALF for cell in row) for row in rows)
    return lines
