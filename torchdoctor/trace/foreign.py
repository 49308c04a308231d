"""What a file of another program says, as the type that is asked for: nothing where it is none."""

import math
import re
from typing import Any

_WHOLE = re.compile(r"[-+]?[0-9]{1,19}")
_BEYOND = 2**63  # what no int64 holds is nobody's number of anything


def whole_number(value: Any) -> int | None:
    """Return a number, or the text of one, as a whole one that an int64 holds; None: it is none."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if -_BEYOND <= value < _BEYOND else None


def real_number(value: Any) -> float:
    """Return a number, or the text of one; NaN where it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # a whole number that no float holds
        return math.nan


def text(value: Any) -> str | None:
    """Return a text; None: it is none, or an empty one."""
    return value if isinstance(value, str) and value else None


def dictionary(value: Any) -> dict[str, Any]:
    """Return a dictionary; an empty one where it is none."""
    return value if isinstance(value, dict) else {}


def dictionaries(value: Any) -> list[dict[str, Any]]:
    """Return a list of dictionaries, empty ones for what is none; none where it is no list."""
    return list(map(dictionary, value)) if isinstance(value, list) else []
