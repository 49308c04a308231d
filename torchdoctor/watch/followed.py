"""What is remembered of each watched process, and what is told of it."""

from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from torchdoctor.schema import Evidence
from torchdoctor.schema.watched import Alert
from torchdoctor.watch.changes import Level
from torchdoctor.watch.means import MEANS, end_ns
from torchdoctor.watch.recording import Event, Process, ProcessLog, Rows, read_lines

ENOUGH = 12  # means that a judgement of the first minute needs
KEPT = 80  # means of a process: those around a change, and those before it


def read_alerts(folder: Path) -> list[Alert]:
    """Return the alerts of a `watch` folder as they were told; each once, of several hosts too."""
    alerts: dict[tuple[object, ...], Alert] = {}
    for path in sorted(folder.glob("alerts*.jsonl")):  # one of each host
        for alert in read_lines(path, Alert):
            alerts.setdefault((alert.kind, alert.cause, alert.rank, alert.step), alert)
    return sorted(alerts.values(), key=lambda alert: alert.t_unix_s)


@dataclass
class Followed:
    """What is remembered of one process between two looks at its log."""

    stem: str
    process: Process = field(default_factory=lambda: Process(host="", pid=0))
    read: int = 0  # rows of its step log
    level: Level = field(default_factory=Level)
    means: deque[Rows] = field(default_factory=lambda: deque(maxlen=KEPT))  # rows of `MEANS`
    firsts: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))  # rows of the log
    regime: int = 0  # the step from which on the level is the present one
    used: list[tuple[float, float, float]] = field(default_factory=list)  # t_ns, bytes, step
    pauses: dict[str, list[Event]] = field(default_factory=dict)
    events: int = 0
    longest_s: float = 0.0  # row of the step log
    last_step: int = 0
    last_ns: float = 0.0  # when it ended
    sign: Rows | None = None  # its heartbeat

    @property
    def table(self) -> Rows:
        """Return the last means."""
        return np.array(list(self.means), MEANS)

    def skip(self, rows: int) -> None:
        """Read on after so many more rows of the step log."""
        self.read += rows

    def see(self, log: ProcessLog) -> None:
        """Take what the process said last of itself and of its steps."""
        self.process = log.process
        steps = log.steps
        self.sign = log.sensors[-1] if len(log.sensors) else None
        if len(steps):
            self.last_step, self.last_ns = int(steps.step[-1]), float(end_ns(steps)[-1])
            self.longest_s = max(self.longest_s, float(steps.total_s.max()))

    def unix_s(self, t_ns: float) -> float:
        """Return Unix time for a time of the host's monotonic clock."""
        if self.sign is not None:
            return float(t_ns + (self.sign["unix_ns"] - self.sign["t_ns"])) / 1e9
        return float(t_ns + (self.process.start_unix_ns - self.process.start_ns)) / 1e9

    def alert(self, kind: str, evidence: Evidence, t_ns: float, step: float = -1) -> Alert:
        """Return an alert; its fact names the step and the moment too."""
        since_s = self.unix_s(t_ns)
        step = int(step if step >= 0 else self.last_step)
        rank = self.process.rank
        since = {"step": step, "since_s": since_s, "rank": rank}
        evidence = replace(evidence, values={**evidence.values, **since})
        return Alert(
            t_unix_s=since_s,
            step=step,
            kind=kind,
            fact=evidence,
            rank=rank,
            unit=self.process.unit,
            program=self.process.kind,
        )
