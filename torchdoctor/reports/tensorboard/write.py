"""Write a report below a TensorBoard log folder."""

import itertools
import re
import shutil
import socket
import time
from pathlib import Path

from tensorboard.plugins.hparams import summary_v2 as hparams

from torchdoctor.reports import markdown
from torchdoctor.reports.details import A_A
from torchdoctor.reports.formats import document
from torchdoctor.reports.run_columns import read_measured, trace_files
from torchdoctor.reports.tensorboard.scalars import (
    EventFile,
    write_figures,
    write_observed,
    write_steps,
)
from torchdoctor.reports.trial_rows import training
from torchdoctor.words import Interval, Report
from torchdoctor.words.errors import UsageError
from torchdoctor.words.figures import MISSING, clean, settings

_RUN = "run"
_NAMED = re.compile(r".+\.pt\.trace\.json(\.gz)?")  # as torch's tensorboard_trace_handler names it


def write_tensorboard(report: Report, folder: Path) -> None:
    """Write a report below a log folder; what other runs wrote there stays.

    `<folder>/<when>/run` holds scalars and text, `<when>/baseline` and `<when>/recommended`
    the steps of the timed launches, `<when>/trials/<nn>-<fix>` one HParams session for each trial,
    and `<folder>/plugins/profile/<when>` the traces.
    Raise UsageError if the folder cannot be written.
    """
    created = "".join(c for c in report.created.partition("+")[0] if c.isalnum())
    plain = created or time.strftime("%Y%m%dT%H%M%S")
    names = (f"{plain}-{number}" if number > 1 else plain for number in itertools.count(1))
    when = next(name for name in names if not (folder / name).exists())
    measured = read_measured(report)
    try:
        with EventFile(folder / when / _RUN) as writer:
            write_figures(writer, report)
            write_observed(writer, measured)
            for number, (title, text) in enumerate(markdown.titled(document(report)), 1):
                writer.text(f"report/{number:02d} {title}", text)
        for kind in measured.kinds.keys() - {"observed"}:  # each a run, so that one chart has both
            with EventFile(folder / when / kind) as writer:
                write_steps(writer, "step_time/measured_s", kind, measured)
        _write_trials(report, folder / when / "trials")
        _write_traces(report, folder / "plugins" / "profile" / when)
    except OSError as error:
        raise UsageError(
            f"Cannot write the TensorBoard folder {folder} ({error.strerror or error}): name "
            "another folder with --tensorboard."
        ) from error


def _write_traces(report: Report, folder: Path) -> None:
    """Copy each trace to `<folder>/<worker>.<time>.pt.trace.json[.gz]`; its content stays.

    The worker is `<host>_<pid>` for a trace of our own launches. A trace that was given keeps its
    name where that is such a name, else the worker is `<its name>_<rank>`: the profiler plugin
    tells a job's ranks by their workers.
    """
    ranks = {rank.path: rank.rank for rank in report.ranks}
    for number, path in enumerate(trace_files(report)):
        folder.mkdir(parents=True, exist_ok=True)
        name, stem = path.name, path.name.removesuffix(".gz").removesuffix(".json")
        if report.run_folder or not _NAMED.fullmatch(name):
            worker = f"{stem}_{ranks.get(str(path), number)}"
            if report.run_folder:
                worker = f"{socket.gethostname()}_{stem.removeprefix('trace-')}"
            packed = ".gz" if path.name.endswith(".gz") else ""
            worker = re.sub(r"[^A-Za-z0-9_-]+", "-", worker)
            name = f"{worker}.{path.stat().st_mtime_ns}.pt.trace.json{packed}"
        if (folder / name).exists():  # two folders of ranks may repeat a name
            name = f"{number}_{name}"
        shutil.copyfile(path, folder / name)


def _write_trials(report: Report, folder: Path) -> None:
    """Write a session `<folder>/<nn>-<fix>` for each trial, in order: its columns and figures.

    Behind the measured and the failed trials stand the recommended set and the A/A.
    """
    columns = ("fix", "settings", "verdict", "training")
    rows: list[tuple[tuple[str, str, str, str], Interval | None, int | None]] = []
    for trial in report.trials:
        if trial.speedup is not None or trial.verdict == "failed":
            named = clean(trial.fix), settings(trial.settings), trial.verdict
            cells = *named, training(trial.numerics)
            rows.append((cells, trial.speedup, trial.peak_memory_bytes))
    together = report.recommendation
    if together.speedup is not None and len(together.fixes) > 1:
        fixes = ", ".join(clean(fix.fix) for fix in together.fixes)
        trains = training(together.numerics)
        cells = "all recommended together", fixes, "recommended", trains
        rows.append((cells, together.speedup, together.peak_memory_bytes))
    if report.noise_floor is not None:
        rows.append(((A_A, "", "noise floor", ""), report.noise_floor, None))
    # No config of an experiment: TensorBoard would take one report's for all in the log folder.
    for number, (cells, speedup, memory) in enumerate(rows, 1):
        name = f"{number:02d}-{''.join(c if c.isalnum() else '-' for c in cells[0])}"
        with EventFile(folder / name) as writer:
            # TensorBoard makes one row of all that have the same id, also of other reports.
            title = f"{number:02d} {cells[0]} {folder.parent.name}"
            shown = {column: cell or MISSING for column, cell in zip(columns, cells, strict=True)}
            writer.summary(hparams.hparams_pb(shown, trial_id=title))
            if speedup is not None:
                writer.scalar("speedup", speedup.estimate)
                writer.scalar("speedup_low", speedup.low)
                writer.scalar("speedup_high", speedup.high)
            writer.scalar("peak_memory_GB", None if memory is None else memory / 1e9)
