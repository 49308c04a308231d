"""Where the change of the step's time lies: branches of the tree, operators, other figures."""

from __future__ import annotations

from dataclasses import asdict

from torchdoctor.compare.step_times import parts_s
from torchdoctor.words import Operator, Report, Shares, StepStatistics, TraceStatistics
from torchdoctor.words.comparison import ComparedFigure, ComparedSide, OperatorChange, PartChange
from torchdoctor.words.traced import LISTED_OPERATORS

SHARE_NAMES = ("data_loader", "memcpy", "memset", "communication", "gpu", "runtime", "cpu", "other")
PHASES = ("data_wait", "h2d_copy", "forward", "backward", "optimizer", "other")
MOST_OPERATORS = 10
_WORTH_NAMING = 0.005  # of the shorter step, for an operator's change
_COUNTED = (
    ("kernels", "kernels_per_step", ""),
    ("kernel, median", "kernel_median_us", "us"),
    ("GPU busy, collectives included", "gpu_busy_share", "share"),
    ("copied to device", "h2d_bytes", "bytes"),
    ("copied to host", "d2h_bytes", "bytes"),
    ("pageable copies", "pageable_copies", ""),
    ("host blocked in copies", "blocking_copy_s", "s"),
    ("syncs", "syncs_per_step", ""),
    ("host blocked in syncs", "sync_s", "s"),
    ("collectives", "communication_s", "s"),
    ("collectives, exposed", "communication_exposed_s", "s"),
    ("operator calls", "operator_calls_per_step", ""),
    ("Python outside operators", "python_s", "s"),
)


def parts(
    a: Report, b: Report, sides: tuple[ComparedSide, ComparedSide]
) -> tuple[str, list[PartChange]]:
    """Seconds per step of each branch ("branches"), or of each phase; the largest change first."""
    old, new = a.baseline.shares, b.baseline.shares
    phases = a.steps is not None and b.steps is not None
    if Shares() not in (old, new) and (same_shares(a, b) or not phases):
        changes = [
            _part(name, getattr(old, name), getattr(new, name), sides) for name in SHARE_NAMES
        ]
        return "branches", _by_change(changes)
    if a.steps is not None and b.steps is not None:
        changes = [_part(n, _phase(a.steps, n), _phase(b.steps, n), sides) for n in PHASES]
        return "phases", _by_change(changes)
    return "none", []


def same_shares(a: Report, b: Report) -> bool:
    """Return True if both measured the same branches in the same way.

    Without a profiler window time has to be told by phases, and what one calls a branch is another
    part of the step.
    """
    old, new = asdict(a.baseline.shares), asdict(b.baseline.shares)
    alike = [name for name in old if (old[name] is None) != (new[name] is None)] == []
    return alike and (a.trace is None) == (b.trace is None)


def _phase(steps: StepStatistics, name: str) -> float | None:
    seconds: float = getattr(steps, f"{name}_s")
    return seconds / steps.mean_s if steps.mean_s > 0 else None


def _part(
    name: str,
    old: float | None,
    new: float | None,
    sides: tuple[ComparedSide, ComparedSide],
) -> PartChange:
    a_s = None if old is None else old * parts_s(sides[0])
    b_s = None if new is None else new * parts_s(sides[1])
    change = None if a_s is None or b_s is None else b_s - a_s
    return PartChange(name=name, a_s=a_s, b_s=b_s, change_s=change)


def _by_change(parts: list[PartChange]) -> list[PartChange]:
    measured = [part for part in parts if part.a_s is not None or part.b_s is not None]
    return sorted(measured, key=lambda part: (part.change_s is None, -abs(part.change_s or 0.0)))


def figures(a: Report, b: Report, sides: tuple[ComparedSide, ComparedSide]) -> list[ComparedFigure]:
    """Throughput, memory, and what the traces count; only what one of them measured."""
    rates = [
        None if side.samples_per_step is None else side.samples_per_step / side.step_s
        for side in sides
    ]
    compared = [
        ComparedFigure(name="samples per second", a=rates[0], b=rates[1]),
        ComparedFigure(
            name="peak memory",
            a=a.baseline.peak_memory_bytes,
            b=b.baseline.peak_memory_bytes,
            unit="bytes",
        ),
    ]
    for name, field, unit in _COUNTED:
        compared.append(
            ComparedFigure(name=name, a=_counted(a, field), b=_counted(b, field), unit=unit)
        )
    return [figure for figure in compared if figure.a is not None or figure.b is not None]


def _counted(report: Report, field: str) -> float | None:
    return None if report.trace is None else getattr(report.trace, field)


def operators(a: Report, b: Report) -> list[OperatorChange]:
    """Return at most ten operators that changed most per step; none without two traces."""
    if not (a.trace and b.trace and a.trace.operators and b.trace.operators):
        return []
    old = {operator.name: operator for operator in a.trace.operators}
    new = {operator.name: operator for operator in b.trace.operators}
    shorter_s = min(a.trace.step_s or 0.0, b.trace.step_s or 0.0)
    changes = []
    for name in dict.fromkeys([*old, *new]):
        operator = _operator(name, old.get(name), new.get(name), a.trace, b.trace)
        recounted = (
            operator.a_calls is not None
            and operator.b_calls is not None
            and abs(operator.b_calls - operator.a_calls) > 0.01 * operator.a_calls
        )
        if abs(operator.change_s) > _WORTH_NAMING * shorter_s or recounted:
            changes.append(operator)
    return sorted(changes, key=lambda operator: -abs(operator.change_s))[:MOST_OPERATORS]


def _operator(
    name: str,
    old: Operator | None,
    new: Operator | None,
    before: TraceStatistics,
    after: TraceStatistics,
) -> OperatorChange:
    change = "changed"
    if old is None:
        change = "newly listed" if len(before.operators) >= LISTED_OPERATORS else "new"
    elif new is None:
        change = "no longer listed" if len(after.operators) >= LISTED_OPERATORS else "gone"
    host_s = (new.self_s if new else 0.0) - (old.self_s if old else 0.0)
    device_s = _device_s(new) - _device_s(old)
    return OperatorChange(
        name=name,
        change=change,
        change_s=max(host_s, device_s, key=abs),
        a_calls=old.calls_per_step if old else None,
        b_calls=new.calls_per_step if new else None,
        a_self_s=old.self_s if old else None,
        b_self_s=new.self_s if new else None,
        a_device_s=old.device_s if old else None,
        b_device_s=new.device_s if new else None,
    )


def _device_s(operator: Operator | None) -> float:
    return (operator.device_s or 0.0) if operator is not None else 0.0
