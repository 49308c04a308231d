"""The live figures of a watched run: OpenMetrics text for a node exporter, TensorBoard scalars."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from torchdoctor.schema.record_files import replacing
from torchdoctor.watch.recording import PHASES, ProcessLog, read_run

_PREFIX = "torchdoctor_watch"
_RECENT = 2_000  # rows


class LiveFigures:
    """Written again and again; neither asked for: nothing is read."""

    def __init__(self, folder: Path, metrics: Path | None, tensorboard: Path | None) -> None:
        self._folder = folder
        self._metrics = metrics
        run = folder.parent.name
        self._scalars = None
        if tensorboard is not None:  # its writer is an extra
            from torchdoctor.reports.tensorboard.write import EventFile

            self._scalars = EventFile(tensorboard / run / "watch")
        self._last: dict[str, int] = {}  # by process: the step that was written last

    def write(self, machine: dict[str, float]) -> None:
        """Write what is new; `machine`: the last sample of it."""
        if self._metrics is None and self._scalars is None:
            return
        logs = read_run(self._folder).processes
        if self._scalars is not None and logs:
            self._write_scalars(logs[0])
        if self._metrics is not None:
            lines = [line for log in logs for line in _metrics(log)]
            lines += [
                f"{_PREFIX}_{name} {machine[name]:.6g}"
                for name in ("memory_free_bytes", "gpu_utilization", "gpu_memory_bytes")
                if not math.isnan(machine.get(name, math.nan))
            ]
            with replacing(self._metrics) as file:
                file.write(_with_types(lines).encode())

    def _write_scalars(self, log: ProcessLog) -> None:
        """Write a point for the steps since the last one, all of them together."""
        last = self._last.get(log.stem, 0)
        first = int(np.searchsorted(log.steps.rows["step"], last, side="right"))
        rows = type(log.steps)(rows=log.steps.rows[first:])
        if not len(rows) or self._scalars is None:
            return
        step = self._last[log.stem] = int(rows.step[-1])
        total_s = float(rows.total_s.sum())
        count = int(rows.steps.sum())
        self._scalars.scalar("watch/step_s", total_s / count, step)
        self._scalars.scalar("watch/steps_per_s", count / total_s, step)
        for phase, seconds in zip(PHASES, rows.spent_s.sum(axis=0), strict=True):
            self._scalars.scalar(f"watch/share/{phase}", float(seconds) / total_s, step)
        if len(log.sensors):
            self._scalars.scalar("watch/rss_GB", float(log.sensors["rss_bytes"][-1]) / 1e9, step)
            self._scalars.scalar("watch/loss", float(log.sensors["loss"][-1]), step)
        self._scalars.flush()

    def close(self) -> None:
        """End the TensorBoard file."""
        if self._scalars is not None:
            self._scalars.close()


def _metrics(log: ProcessLog) -> Iterator[str]:
    """Yield the samples of one process."""
    rows = type(log.steps)(rows=log.steps.rows[-_RECENT:])
    label = f'{{host="{log.process.host}",pid="{log.process.pid}",rank="{log.process.rank or 0}"}}'
    if len(rows):
        # Of the last half minute, or of the last row where it covers more.
        ends_s = rows.start_ns / 1e9 + rows.total_s
        recent = ends_s > ends_s[-1] - 30
        total_s = float(rows.total_s[recent].sum())
        yield f"{_PREFIX}_steps_total{label} {int(rows.step[-1])}"
        yield f"{_PREFIX}_step_seconds{label} {total_s / rows.steps[recent].sum():.6g}"
        samples = float(np.nansum((rows.samples * rows.steps)[recent]))
        if samples:
            yield f"{_PREFIX}_samples_per_second{label} {samples / total_s:.6g}"
        shares = rows.spent_s[recent].sum(axis=0) / total_s
        for phase, share in zip(PHASES, shares, strict=True):
            yield f'{_PREFIX}_phase_ratio{label[:-1]},phase="{phase}"}} {share:.4f}'
    for name in ("rss_bytes", "device_bytes", "loss"):
        if len(log.sensors) and not math.isnan(value := float(log.sensors[name][-1])):
            yield f"{_PREFIX}_{name}{label} {value:.6g}"
    if len(log.sensors):
        yield f"{_PREFIX}_sign_of_life_seconds{label} {log.sensors['unix_ns'][-1] / 1e9:.3f}"


def _with_types(lines: list[str]) -> str:
    """Return OpenMetrics text: the samples of one family together, below its type."""
    families: dict[str, list[str]] = {}
    for line in lines:
        families.setdefault(line.partition("{")[0].split()[0], []).append(line)
    text = ""
    for name, samples in families.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        text += "\n".join([f"# TYPE {name.removesuffix('_total')} {kind}", *samples]) + "\n"
    return text + "# EOF\n"
