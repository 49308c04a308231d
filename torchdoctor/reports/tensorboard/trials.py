"""Trials as HParams sessions: one row each in TensorBoard's table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchdoctor.reports.details import A_A
from torchdoctor.reports.tensorboard.event_file import EventFile
from torchdoctor.reports.trial_rows import TRAINING
from torchdoctor.words import Interval, Report
from torchdoctor.words.figures import MISSING, clean, settings


@dataclass(frozen=True, kw_only=True)
class _Row:
    fix: str
    settings: str
    verdict: str
    training: str
    speedup: Interval | None
    peak_memory_bytes: int | None = None


def write_trials(report: Report, folder: Path) -> None:
    """Write a session `<folder>/<nn>-<fix>` for each measured or failed trial, and the A/A."""
    from tensorboard.plugins.hparams import summary_v2 as hparams

    # No config of an experiment: TensorBoard would take one report's for all in the log folder.
    for number, row in enumerate(_rows(report), 1):
        name = f"{number:02d}-{''.join(c if c.isalnum() else '-' for c in row.fix)}"
        columns: dict[str, bool | float | str] = {
            "fix": row.fix,
            "settings": row.settings or MISSING,
            "verdict": row.verdict,
            "training": row.training or MISSING,
        }
        with EventFile.into(folder / name) as writer:
            # TensorBoard makes one row of all that have the same id, also of other reports.
            title = f"{number:02d} {row.fix} {folder.parent.name}"
            writer.summary(hparams.hparams_pb(columns, trial_id=title))
            if row.speedup is not None:
                writer.scalar("speedup", row.speedup.estimate)
                writer.scalar("speedup_low", row.speedup.low)
                writer.scalar("speedup_high", row.speedup.high)
            memory = row.peak_memory_bytes
            writer.scalar("peak_memory_GB", None if memory is None else memory / 1e9)
            writer.summary(_session_end(failed=row.speedup is None))


def _session_end(failed: bool) -> Any:
    """Return what marks a session as done. TensorBoard's own function for it needs TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    status = api_pb2.STATUS_FAILURE if failed else api_pb2.STATUS_SUCCESS
    ended = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
    data = plugin_data_pb2.HParamsPluginData(session_end_info=ended)
    entry = Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(data),
        tensor=metadata.NULL_TENSOR,
    )
    return Summary(value=[entry])


def _rows(report: Report) -> Iterator[_Row]:
    """Yield the trials in the report's order, then the recommended set and the A/A."""
    for trial in report.trials:
        if trial.speedup is not None or trial.verdict == "failed":
            yield _Row(
                fix=clean(trial.fix),
                settings=settings(trial.settings),
                verdict=trial.verdict,
                training=TRAINING.get(trial.numerics, trial.numerics),
                speedup=trial.speedup,
                peak_memory_bytes=trial.peak_memory_bytes,
            )
    together = report.recommendation
    if together.speedup is not None and len(together.fixes) > 1:
        numerics = together.numerics or ""
        yield _Row(
            fix="all recommended together",
            settings=", ".join(clean(fix.fix) for fix in together.fixes),
            verdict="recommended",
            training=TRAINING.get(numerics, numerics),
            speedup=together.speedup,
            peak_memory_bytes=together.peak_memory_bytes,
        )
    if report.noise_floor is not None:
        yield _Row(
            fix=A_A, settings="", verdict="noise floor", training="", speedup=report.noise_floor
        )
