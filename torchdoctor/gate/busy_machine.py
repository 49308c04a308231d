"""What a gate on a busy machine cannot decide: a slow-down that the load of others may be. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from torchdoctor.gate.answer import Basis, answer
from torchdoctor.queries.hardware import MUCH_LOAD, much_load
from torchdoctor.schema import Interval, OtherLoad, Report, fact
from torchdoctor.schema.gate import GateMetric, GateReport

_TIMES = ("step_time", "samples_per_s")  # one figure, which the load of others moves


def with_load(
    report: GateReport, load: OtherLoad | None, stored: Report | None = None
) -> GateReport:
    """Return a result with what others held meanwhile, which may leave a slow-down undecided.

    `stored`: the report that was compared with.
    """
    if load is None:
        return report
    report = replace(report, other_load=load)
    if much_load(load.held, load.usable) is None:
        return report
    busy = fact("busy-machine", held=load.held, usable=load.usable)
    if report.verdict == "slower" and _may_be_load(report.metrics, load, stored):
        rows = [
            replace(row, verdict="not decided") if row.name in _TIMES else row
            for row in report.metrics
        ]
        why = Basis(why=fact("slow-down-may-be-load"))
        undecided = answer(rows, "inconclusive", report.reference, why)
        return replace(report, verdict="inconclusive", metrics=rows, answer=[*undecided, busy])
    return replace(report, answer=[*report.answer, busy])


def _may_be_load(rows: Sequence[GateMetric], load: OtherLoad, stored: Report | None) -> bool:
    """Return True if times alone are worse, and the load of others may be the reason."""
    worse = [row for row in rows if row.verdict == "worse"]
    if not all(row.name in _TIMES for row in worse):
        return False
    if stored is not None:
        return load.held - _held_then(stored) >= MUCH_LOAD * load.usable
    # It met both sides of each pair: what lies beyond the tolerance as a whole is no chance.
    return not _is_beyond(rows[0].ratio, rows[0].tolerance)


def _held_then(stored: Report) -> float:
    """Return the CPUs that others held as the stored launches were made."""
    if stored.other_load is not None:
        return stored.other_load.held
    return stored.sensors.other_load_cpus or 0.0


def _is_beyond(ratio: Interval | None, tolerance: float | None) -> bool:
    return ratio is not None and ratio.low > 1.0 + (tolerance or 0.0)
