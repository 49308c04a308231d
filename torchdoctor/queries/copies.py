"""Lines of the user's code that copy: what they cost. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchdoctor.queries.hot_calls import sampled_share
from torchdoctor.queries.stacks import by_function
from torchdoctor.schema import Location, Recording, StackSample

_LEAST = 0.05  # of the step, from where on a copy is told
_FEWEST = 20  # samples, of fewer nothing is said
_LEAF = re.compile(r"(^|/)copy\.py ")  # of Python's module
_TEXT = re.compile(r"\bdeepcopy\(|\.clone\(\)|\bnp\.copy\(|\.copy\(\)")
_TRIED = re.compile(r"\bdeepcopy\(|\.clone\(\)")  # a NumPy array cannot tell that it was written to


@dataclass(frozen=True, kw_only=True)
class CopyingCode:
    """The copying lines of one function, and their share of the step."""

    share: float
    rows: Sequence[StackSample]  # the most frequent first

    @property
    def location(self) -> Location:
        """The line that most samples show."""
        return self.rows[0].location

    @property
    def can_be_tried(self) -> bool:
        """Return True if its copies are of tensors, or of what holds them, as far as is seen."""
        return any(_TRIED.search(row.text) for row in self.rows)


def copying_code(recording: Recording) -> list[CopyingCode]:
    """Return functions whose copies take a twentieth of the step or more, the largest first."""
    stacks = recording.main.stacks
    if sum(row.count for row in stacks) < _FEWEST:
        return []
    rows = [row for row in stacks if _LEAF.search(row.leaf) or _TEXT.search(row.text)]
    code = []
    for place in by_function(rows):
        own = sorted(place.rows, key=lambda row: -row.count)
        code.append(CopyingCode(share=sampled_share(recording, own), rows=own))
    told = [each for each in code if each.share >= _LEAST]
    return sorted(told, key=lambda each: -each.share)
