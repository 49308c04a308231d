"""What goes wrong inside the probe: noted, never raised into the user's program."""

from __future__ import annotations

import os
import traceback

_MOST = 20
_errors: list[str] = []
_counts: dict[str, int] = {}


def note(where: str, error: BaseException | str) -> None:
    """Note an error of the probe. Repeated ones are counted, not stored."""
    try:
        if isinstance(error, str):
            text = f"{where}: {error}"
        else:
            last = traceback.extract_tb(error.__traceback__)[-1:]
            place = f" ({os.path.basename(last[0].filename)}:{last[0].lineno})" if last else ""
            text = f"{where}: {type(error).__name__}: {error}{place}"
        _counts[text] = _counts.get(text, 0) + 1
        if _counts[text] == 1 and len(_errors) < _MOST:
            _errors.append(text)
    except Exception:  # a __str__ that raises must not reach the program either
        if len(_errors) < _MOST:
            _errors.append(f"{where}: an error that could not be described")


def noted() -> list[str]:
    """Every different error so far, with how often it happened."""
    return [e if _counts.get(e, 1) == 1 else f"{e} [{_counts[e]} times]" for e in _errors]


def drop_own_frame(error: BaseException) -> None:
    """Take the caller's frame out of the traceback of an error that it is about to re-raise.

    A bare `raise` adds no entry for its own frame (on Python 3.10 it puts the old one back), so
    the user reads the traceback that plain Python would have shown.
    """
    tb = error.__traceback__
    if tb is not None and tb.tb_next is not None:
        error.__traceback__ = tb.tb_next
