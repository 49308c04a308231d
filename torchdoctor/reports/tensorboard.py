"""A report as TensorBoard event files: scalars, trials as HParams, the report as text, traces.

Only the `tensorboard` package writes here; torch is not imported.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchdoctor.errors import UsageError
from torchdoctor.records import Report, Trial
from torchdoctor.reports import markdown
from torchdoctor.reports.figures import clean, fix_with_settings

_RUN = "run"


def write_tensorboard(report: Report, folder: Path) -> None:
    """Write a report below a log folder; what other runs wrote there stays.

    `<folder>/<when>/run` holds scalars and text, `<folder>/<when>/trials/<n>` one HParams session
    for each measured trial, `<folder>/plugins/profile/<when>` the traces, for profile tools and
    Perfetto.

    Raises:
        UsageError: the folder cannot be written.
    """
    when = "".join(c for c in report.created if c.isalnum()) or time.strftime("%Y%m%dT%H%M%S")
    try:
        with _Writer.into(folder / when / _RUN) as writer:
            _scalars(writer, report)
            writer.text("report", markdown.render(report))
        _trials(report, folder / when)
        _traces(report, folder / "plugins" / "profile" / when)
    except OSError as error:
        raise UsageError(
            f"Cannot write the TensorBoard folder {folder} ({error.strerror or error}): name "
            "another with --tensorboard."
        ) from error


class _Writer:
    """One event file. Values of a plugin carry its metadata once, as TensorBoard wants it."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._file = EventFileWriter(str(folder))
        self._now = time.time()

    @classmethod
    @contextmanager
    def into(cls, folder: Path) -> Iterator[_Writer]:
        """A writer that is closed, and its file whole, at the end."""
        folder.mkdir(parents=True, exist_ok=True)
        writer = cls(folder)
        try:
            yield writer
        finally:
            writer._file.close()

    def scalar(self, tag: str, value: float | None, step: int = 0) -> None:
        """One point; None is left out, because it was not measured."""
        if value is None:
            return
        import numpy as np
        from tensorboard.plugins.scalar.metadata import create_summary_metadata

        metadata = create_summary_metadata(display_name="", description="")
        self._add(tag, np.float32(value), metadata, step)

    def text(self, tag: str, text: str) -> None:
        """Markdown, shown as such."""
        import numpy as np
        from tensorboard.plugins.text.metadata import create_summary_metadata

        metadata = create_summary_metadata(display_name="", description="")
        self._add(tag, np.array(text.encode(), dtype=object), metadata, 0)

    def summary(self, summary: Any) -> None:
        """A summary that a plugin made itself."""
        from tensorboard.compat.proto.event_pb2 import Event

        self._file.add_event(Event(wall_time=self._now, step=0, summary=summary))

    def _add(self, tag: str, value: Any, metadata: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.util.tensor_util import make_tensor_proto

        entry = Summary.Value(tag=tag, tensor=make_tensor_proto(value), metadata=metadata)
        event = Event(wall_time=self._now, step=step, summary=Summary(value=[entry]))
        self._file.add_event(event)


def _scalars(writer: _Writer, report: Report) -> None:
    baseline, time_s = report.baseline, report.baseline.step_time_s
    if time_s is not None:
        writer.scalar("step_time/median_s", time_s.median)
        writer.scalar("step_time/mean_s", time_s.mean)
    for number, seconds in enumerate(report.trace.step_times_s if report.trace else []):
        writer.scalar("step_time/profiled_s", seconds, number)
    for number, seconds in enumerate(baseline.launches_s):
        writer.scalar("launches/baseline_s_per_sample", seconds, number)
    writer.scalar("samples_per_s", baseline.samples_per_s)
    writer.scalar("memory/peak_bytes", baseline.peak_memory_bytes)
    for name, share in asdict(baseline.shares).items():
        writer.scalar(f"share_of_step/{name}", share)
    _sensors(writer, report)


def _sensors(writer: _Writer, report: Report) -> None:
    """Utilization and memory over time where the run folder still has them, else their means."""
    seen = report.sensors
    for tag, value in (
        ("utilization/cpu", seen.cpu_share),
        ("utilization/gpu", seen.gpu_utilization),
        ("memory/rss_peak_bytes", seen.rss_peak_bytes),
        ("memory/gpu_peak_bytes", seen.gpu_memory_peak_bytes),
    ):
        writer.scalar(f"{tag}_overall", value)
    folder = Path(report.run_folder or "") / "launches" / "001-observe" / "sensors.npz"
    if not report.run_folder or not folder.is_file():
        return
    import numpy as np

    with np.load(folder) as columns:
        for tag, name, clock in (
            ("utilization/gpu", "gpu_utilization", "t_ns"),
            ("memory/gpu_bytes", "gpu_memory_bytes", "t_ns"),
            ("memory/rss_bytes", "rss_bytes", "process_t_ns"),
        ):
            if name not in columns or clock not in columns:
                continue
            values = np.asarray(columns[name], dtype=float)
            rows = values if values.ndim == 1 else values[:, :1].ravel()
            times = columns[clock][: len(rows)]
            for at, value in zip(times, rows, strict=False):
                if np.isfinite(value):
                    writer.scalar(tag, float(value), int((at - times[0]) // 1_000_000))


def _trials(report: Report, folder: Path) -> None:
    from tensorboard.plugins.hparams import summary_v2 as hparams

    measured = [trial for trial in report.trials if trial.speedup is not None]
    if not measured:
        return
    # No config of an experiment: TensorBoard would take one report's for all in the log folder.
    for number, trial in enumerate(measured):
        name = f"{number:02d}-{''.join(c if c.isalnum() else '-' for c in trial.fix)}"
        with _Writer.into(folder / "trials" / name) as writer:
            title = fix_with_settings(trial.fix, trial.settings)
            writer.summary(hparams.hparams_pb(_settings(trial), trial_id=f"{number} {title}"))
            assert trial.speedup is not None
            writer.scalar("speedup", trial.speedup.estimate)
            writer.scalar("speedup_low", trial.speedup.low)
            writer.scalar("speedup_high", trial.speedup.high)
            writer.scalar("peak_memory_bytes", trial.peak_memory_bytes)


def _settings(trial: Trial) -> dict[str, bool | float | str]:
    """The fix, its settings, the verdict and what happened to training, as HParams."""
    found: dict[str, bool | float | str] = {
        "fix": clean(trial.fix),
        "verdict": trial.verdict,
        "training": trial.numerics,
    }
    for name, value in trial.settings.items():
        together = isinstance(value, Mapping)  # settings of several fixes, by fix
        for key, setting in (value if together else {name: value}).items():
            plain = isinstance(setting, (bool, int, float, str))
            column = f"{name}.{key}" if together else f"setting.{key}"
            found[column] = setting if plain else str(setting)
    return found


def _traces(report: Report, folder: Path) -> None:
    paths = sorted(Path(report.run_folder or "").glob("launches/*/channel/trace-*.json.gz"))
    if not report.run_folder:
        given = Path(report.trace.path) if report.trace else None
        paths = [given] if given is not None and given.is_file() else []
    for number, path in enumerate(paths):
        folder.mkdir(parents=True, exist_ok=True)
        suffix = ".pt.trace.json.gz" if path.name.endswith(".gz") else ".pt.trace.json"
        shutil.copyfile(path, folder / f"torchdoctor_{number}{suffix}")
