"""The CPUs that other programs take while launches follow each other, or run side by side."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

_BUSY = ("user", "nice", "system", "irq", "softirq")  # guest time is part of user time already
_SHORTEST_S = 1.0


class LoadBeside:
    """CPUs that others kept busy since it was made.

    A launch's own sensors cannot tell that of a pair side by side: to each the other one is a
    stranger. What we and all that we have started, and waited for, used is what the kernel counts.
    """

    def __init__(self) -> None:
        self._began = _read()

    def cpus(self) -> float | None:
        """Return CPUs, on average, to be asked once all launches have ended; None: not known."""
        now, began = _read(), self._began
        passed_s = now.at_s - began.at_s
        if passed_s < _SHORTEST_S or os.name == "nt":  # Windows counts no children
            return None
        return max(0.0, (now.all_s - began.all_s) - (now.own_s - began.own_s)) / passed_s


@dataclass(frozen=True)
class _Reading:
    at_s: float
    all_s: float  # of all CPUs
    own_s: float


def _read() -> _Reading:
    cores = psutil.cpu_times(percpu=True)
    busy = sum(getattr(core, name, 0.0) for core in cores for name in _BUSY)
    own = os.times()
    return _Reading(
        at_s=time.monotonic(),
        all_s=busy,
        own_s=own.user + own.system + own.children_user + own.children_system,
    )
