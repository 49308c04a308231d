"""The channel folder while a launch runs: whether the probe has said that it is done."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.launch.running_launch import RunningLaunch

LAST_WAIT_S = 3.0  # for other training processes, once the first one is done


class WindowDone:
    """True once every process that trains has a done file, or one has had it for some seconds."""

    def __init__(self) -> None:
        self._steps: dict[str, tuple[int, bool]] = {}  # pid -> (time of change, has stepped)
        self._first_done_s: float | None = None

    def __call__(self, running: RunningLaunch) -> bool:
        """See `launch`'s `poll`."""
        done, facts = _files(running.channel)
        if not done:
            return False
        if self._first_done_s is None:
            self._first_done_s = running.elapsed_s
        if running.elapsed_s - self._first_done_s > LAST_WAIT_S:
            return True
        training = {pid for pid, entry in facts.items() if self._has_stepped(pid, entry)}
        return training <= done

    def _has_stepped(self, pid: str, path: Path) -> bool:
        try:
            changed = path.stat().st_mtime_ns
            if self._steps.get(pid, (0, False))[0] != changed:
                content = json.loads(path.read_bytes())
                self._steps[pid] = (changed, content.get("first_step_s") is not None)
        except (OSError, ValueError):
            return False
        return self._steps[pid][1]


def _files(channel: Path) -> tuple[set[str], dict[str, Path]]:
    """Pids with a done file, and the process files by pid."""
    done, facts = set(), {}
    with os.scandir(channel) as entries:
        for entry in entries:
            kind, _, rest = entry.name.partition("-")
            pid = rest.removesuffix(".json")
            if pid.isdecimal() and kind == "done":
                done.add(pid)
            elif pid.isdecimal() and kind == "process":
                facts[pid] = Path(entry.path)
    return done, facts
