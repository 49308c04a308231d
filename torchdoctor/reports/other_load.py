"""What other programs held while fixes were tried, as sentences for every kind of report."""

from torchdoctor.queries.hardware import load_of, much_load
from torchdoctor.reports.document import Block, KeyFigures
from torchdoctor.schema import Report


def held(report: Report) -> str:
    """Return that other programs held so many processors; empty where that was little."""
    load = report.other_load
    if load is None or much_load(load.held, load.usable) is None:
        return ""
    return (
        f"Other programs held {load.held:.1f} of {load.usable:g} processors while fixes were "
        "tried: speed-ups, above all of workers and threads, are those of a busy machine."
    )


def is_busy(report: Report) -> bool:
    """Return True where others held much of the machine, as it was observed or at the trials."""
    observed = load_of([report.sensors], report.environment.usable_cpus)
    return observed is not None or bool(held(report))


def undecided(report: Report) -> list[Block]:
    """Return what stays open where nothing is to be gained but, perhaps, on a quiet machine."""
    if report.ending is None or report.ending.reason != "busy machine":
        return []
    figure = "Nothing else gains. Run it again on a quiet machine."
    return [KeyFigures("Not decided for workers and threads.", figure)]
