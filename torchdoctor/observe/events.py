"""The probe's event columns, read back.

`events-<pid>.bin` holds little-endian int64 rows of four (code, ident, t_ns, value); the codes
are those of `probe.step_log`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from torchdoctor.observe.gradient_calls import with_backwards
from torchdoctor.words import ProcessFacts

_ROW_BYTES = 4 * 8
_LOADER_MASK = (1 << 20) - 1


@dataclass(frozen=True, kw_only=True)
class Events:
    """What one process logged, ordered by time; four int64 columns of equal length."""

    code: np.ndarray
    ident: np.ndarray
    t_ns: np.ndarray
    value: np.ndarray
    learned_by: str = "backward"  # see `records.Boundary`

    def __len__(self) -> int:
        return len(self.code)

    def at(self, *codes: int) -> np.ndarray:
        """Row numbers of the events with one of these codes, ascending."""
        found = self.code == codes[0]
        for code in codes[1:]:
            found |= self.code == code
        return np.flatnonzero(found)

    @property
    def loader(self) -> np.ndarray:
        """The loader's number of each row; only meaningful for loader and fetch events."""
        return self.ident & _LOADER_MASK


def from_rows(rows: np.ndarray) -> Events:
    """Events of an int64 array of shape (n, 4), sorted by time (equal times keep their order).

    Where no backward was made, the calls of `torch.autograd.grad` that take its place are backwards
    in what is returned.
    """
    rows, learned_by = with_backwards(rows[np.argsort(rows[:, 2], kind="stable")])
    code, ident, t_ns, value = rows.T
    return Events(code=code, ident=ident, t_ns=t_ns, value=value, learned_by=learned_by)


def read_events(path: Path) -> Events:
    """Read one `events-<pid>.bin`; a last row that was cut off by a kill is dropped."""
    data = path.read_bytes() if path.exists() else b""
    whole = data[: len(data) // _ROW_BYTES * _ROW_BYTES]
    rows = np.frombuffer(whole, dtype="<i8").astype(np.int64).reshape(-1, 4)
    return from_rows(rows)


def read_channel(folder: Path) -> tuple[dict[int, Events], dict[int, ProcessFacts], list[str]]:
    """Everything that the processes of one launch left in their channel folder.

    Returns:
        Events by pid, facts by pid, and a sentence for each file that could not be read.
    """
    events: dict[int, Events] = {}
    facts: dict[int, ProcessFacts] = {}
    doubts: list[str] = []
    for path in sorted(folder.glob("events-*.bin")):
        events[_pid_of(path)] = read_events(path)
    for path in sorted(folder.glob("process-*.json")):
        try:
            facts[_pid_of(path)] = msgspec.json.decode(path.read_bytes(), type=ProcessFacts)
        except (msgspec.DecodeError, OSError) as error:
            doubts.append(f"The probe's file {path.name} could not be read: {error}.")
    return events, facts, doubts


def read_losses(path: Path) -> np.ndarray:
    """Read one `losses-<pid>.bin`: float64, one per backward in order."""
    data = path.read_bytes() if path.exists() else b""
    return np.frombuffer(data[: len(data) // 8 * 8], dtype="<f8").astype(np.float64)


def _pid_of(path: Path) -> int:
    return int(path.stem.split("-")[1].split(".")[0])
