"""The energy that the processor's own counters (RAPL) show, where the system lets them be read."""

import contextlib
import math
from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")


class Rapl:
    """The packages of this machine: processors with their caches, without what hangs on them."""

    def __init__(self, powercap: Path = _POWERCAP) -> None:
        self._counters: list[_Counter] = []
        for folder in sorted(powercap.glob("intel-rapl:*")):  # AMD's are named so too
            with contextlib.suppress(OSError, ValueError):
                if (folder / "name").read_text().startswith("package"):
                    self._counters.append(_Counter(folder))

    def read_j(self) -> float:
        """Return the energy of all packages since this was made; NaN: not all can be read."""
        if not self._counters:
            return math.nan
        try:
            return sum(counter.read_j() for counter in self._counters)
        except (OSError, ValueError):
            return math.nan


class _Counter:
    """One counter, which begins again at 0 where its range ends."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj = int(self._file.read_text())
        self._total_uj = 0

    def read_j(self) -> float:
        now_uj = int(self._file.read_text())
        risen_uj = now_uj - self._last_uj
        self._total_uj += risen_uj if risen_uj >= 0 else risen_uj + self._range_uj
        self._last_uj = now_uj
        return self._total_uj / 1e6
