"""What room a terminal has: how many lines blocks take, and names short enough for a cell."""

import math
import textwrap
from collections.abc import Sequence

from torchdoctor.advice import catalogue
from torchdoctor.reports.document import Block, Code, KeyFigures, Sentence
from torchdoctor.schema import FixSet
from torchdoctor.schema.figures import fixes_alone, fixes_with_settings

WIDTH = 76  # characters of a narrow screen within its margins
MOST_FIXES = 4  # rows below a title
LONGEST_NAMES = 150  # characters of fixes in a sentence: two lines of a narrow terminal
_LONGEST_NAME = 44  # characters of a fix with its settings in a cell
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


def short_name(fixes: FixSet, longest: int = _LONGEST_NAME) -> str:
    """Return fixes with their settings, short enough for a cell; the details have all of them."""
    named = catalogue.named(fixes)
    name = fixes_with_settings(named)
    if len(name) > longest and len(named) > 1:
        name = fixes_alone(named)  # which fixes they are says more than their settings
    return textwrap.shorten(name, longest, placeholder=" …")


def names_of(sets: Sequence[FixSet]) -> list[str]:
    """Return a short name of each set; whole where several sets would have the same."""
    short_names = list(map(short_name, sets))
    return [
        name if short_names.count(name) == 1 else fixes_with_settings(catalogue.named(fixes))
        for fixes, name in zip(sets, short_names, strict=True)
    ]
