"""What other programs took of the machine, where that was much. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from torchdoctor.records.recording import SensorStatistics

_BUSY = 0.25  # of the usable CPUs


def much_load(sensors: SensorStatistics, usable: float | None) -> float | None:
    """CPUs that other programs kept busy; None where that was little, or is not known.

    Args:
        sensors: of a launch.
        usable: CPUs that the program may use; None: not known.
    """
    busy = sensors.other_load_cpus
    if busy is None or usable is None or busy < _BUSY * max(usable, 1.0):
        return None
    return busy


def load_of(observed: Sequence[SensorStatistics], usable: float | None) -> str | None:
    """The most that they took: "1.2 of 2 usable CPUs"; None where that was little.

    Args:
        observed: of each launch that was looked at.
        usable: as of `much_load`.
    """
    found = [busy for one in observed if (busy := much_load(one, usable)) is not None]
    return f"{max(found):.1f} of {usable:g} usable CPUs" if found else None
