"""How many of something, in words: "1 call", "39 calls", "2.5 copies"."""

from __future__ import annotations

_WHOLE = 10.0  # from here on a fraction says nothing


def counted(number: float, one: str, several: str | None = None) -> str:
    """A number, also a mean, with its noun.

    Args:
        number: at least 0; below 10 with one decimal where it is no whole one.
        one: the noun of exactly 1.
        several: of anything else; None: `one` with an s.
    """
    whole = number >= _WHOLE or abs(number - round(number)) < 0.05
    text = f"{number:,.0f}" if whole else f"{number:.1f}"
    return f"{text} {one if text == '1' else several or one + 's'}"
