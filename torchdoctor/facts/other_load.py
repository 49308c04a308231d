"""What other programs took of the machine, where that was much. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from torchdoctor.words.recording import SensorStatistics

MUCH = 0.25  # of the usable CPUs


def much_load(busy: float | None, usable: float | None) -> float | None:
    """CPUs that other programs kept busy; None where that was little, or is not known.

    Args:
        busy: CPUs that they kept busy on average; None: not known.
        usable: CPUs that the program may use; None: not known.
    """
    if busy is None or usable is None or busy < MUCH * max(usable, 1.0):
        return None
    return busy


def load_of(observed: Sequence[SensorStatistics], usable: float | None) -> str | None:
    """The most that they took: "1.2 of 2 usable CPUs"; None where that was little.

    Args:
        observed: of each launch that was looked at.
        usable: as of `much_load`.
    """
    found = [one.other_load_cpus for one in observed if one.other_load_cpus is not None]
    return load_words(max(found, default=None), usable)


def load_words(busy: float | None, usable: float | None) -> str | None:
    """ "1.2 of 2 usable CPUs"; None where that was little. Args: as of `much_load`."""
    much = much_load(busy, usable)
    return None if much is None else f"{much:.1f} of {usable:g} usable CPUs"
