"""Trials as HParams sessions: one row each in TensorBoard's table."""

from collections.abc import Iterator
from pathlib import Path

from torchdoctor.reports.details import A_A
from torchdoctor.reports.tensorboard.event_file import EventFile
from torchdoctor.reports.trial_rows import TRAINING
from torchdoctor.words import Interval, Report
from torchdoctor.words.figures import MISSING, clean, settings


def write_trials(report: Report, folder: Path) -> None:
    """Write a session `<folder>/<nn>-<fix>` for each measured or failed trial, and the A/A."""
    from tensorboard.plugins.hparams import summary_v2 as hparams

    # No config of an experiment: TensorBoard would take one report's for all in the log folder.
    for number, (columns, speedup, memory) in enumerate(_rows(report), 1):
        fix = columns["fix"]
        name = f"{number:02d}-{''.join(c if c.isalnum() else '-' for c in fix)}"
        with EventFile(folder / name) as writer:
            # TensorBoard makes one row of all that have the same id, also of other reports.
            title = f"{number:02d} {fix} {folder.parent.name}"
            shown = {column: value or MISSING for column, value in columns.items()}
            writer.summary(hparams.hparams_pb(shown, trial_id=title))
            if speedup is not None:
                writer.scalar("speedup", speedup.estimate)
                writer.scalar("speedup_low", speedup.low)
                writer.scalar("speedup_high", speedup.high)
            writer.scalar("peak_memory_GB", None if memory is None else memory / 1e9)


def _rows(report: Report) -> Iterator[tuple[dict[str, str], Interval | None, int | None]]:
    """Yield the trials in the report's order, then the recommended set and the A/A.

    Each with its columns, its speed-up and its peak memory in bytes.
    """
    for trial in report.trials:
        if trial.speedup is not None or trial.verdict == "failed":
            training = TRAINING.get(trial.numerics, trial.numerics)
            shown = _columns(clean(trial.fix), settings(trial.settings), trial.verdict, training)
            yield shown, trial.speedup, trial.peak_memory_bytes
    together = report.recommendation
    if together.speedup is not None and len(together.fixes) > 1:
        fixes = ", ".join(clean(fix.fix) for fix in together.fixes)
        training = TRAINING.get(together.numerics or "", together.numerics or "")
        shown = _columns("all recommended together", fixes, "recommended", training)
        yield shown, together.speedup, together.peak_memory_bytes
    if report.noise_floor is not None:
        yield _columns(A_A, "", "noise floor", ""), report.noise_floor, None


def _columns(fix: str, settings: str, verdict: str, training: str) -> dict[str, str]:
    return {"fix": fix, "settings": settings, "verdict": verdict, "training": training}
