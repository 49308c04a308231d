"""Lines of the user's code that copy: what they cost. Pure."""

import re

from torchdoctor.queries.hot_calls import SampledCode, is_sampled_enough, sampled_code
from torchdoctor.queries.stacks import by_function
from torchdoctor.schema import Recording

_LEAST = 0.05  # of the step, from where on a copy is told
_LEAF = re.compile(r"(^|/)copy\.py ")  # of Python's module
_TEXT = re.compile(r"\bdeepcopy\(|\.clone\(\)|\bnp\.copy\(|\.copy\(\)")
_TRIED = re.compile(r"\bdeepcopy\(|\.clone\(\)")  # a NumPy array cannot tell that it was written to


def copying_code(recording: Recording) -> list[SampledCode]:
    """Return functions whose copies take a twentieth of the step or more, the largest first."""
    if not is_sampled_enough(recording):
        return []
    stacks = recording.main.stacks
    rows = [row for row in stacks if _LEAF.search(row.leaf) or _TEXT.search(row.text)]
    code = sampled_code(recording, by_function(rows))
    return [each for each in code if each.share >= _LEAST]


def copies_tensors(code: SampledCode) -> bool:
    """Return True if copies are of tensors, or of what holds them, as far as is seen."""
    return any(_TRIED.search(row.text) for row in code.rows)
