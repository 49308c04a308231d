"""Two traces of which one marks no steps: kernels and operators compared per call."""

from collections.abc import Callable, Sequence

from torchdoctor import __version__
from torchdoctor.compare.step_times import is_trace
from torchdoctor.compare.surroundings import environment
from torchdoctor.reports.compared_facts import with_sentences
from torchdoctor.schema import KernelTime, Operator, Remark, Report, TraceStatistics, fact
from torchdoctor.schema.comparison import ComparedSide, Comparison, OperatorChange
from torchdoctor.schema.errors import Inconclusive
from torchdoctor.trials.compare import SMALLEST_DELTA

_MOST = 10
_SAME = 0.005  # relative; below it a time per call did not change
_Call = tuple[float, float, float | None]  # calls, seconds of the host, seconds of the device


def marks_no_steps(report: Report) -> bool:
    """Return True if it is of a trace whose steps are unknown."""
    return is_trace(report) and report.trace is not None and not report.trace.steps


def by_call(a: Report, b: Report, names: tuple[str, str]) -> Comparison:
    """Return what both called, time for time; Inconclusive: they have nothing in common."""
    traces = [trace for trace in (a.trace, b.trace) if trace is not None]
    if len(traces) < 2:
        raise Inconclusive(
            "One of the two marks no steps and the other holds no trace, so the two cannot be "
            "compared. A trace has steps if torch.profiler had a `schedule` and profiler.step() "
            "was called."
        )
    kernels = _changes(*(_kernels(trace) for trace in traces))
    operators = _changes(*(_operators(trace) for trace in traces))
    on_device = any(change.a_device_s for change in kernels)
    times = _both(kernels, _device_s) if on_device else _both(operators, _host_s)
    before_s = sum(calls * old for calls, old, _ in times)
    if not before_s:
        raise Inconclusive(
            f"{' and '.join(names)} mark no steps and have no kernel or operator in common, so "
            "the two cannot be compared."
        )
    ratio_of_times = sum(calls * new for calls, _, new in times) / before_s
    verdict = "slower" if ratio_of_times > 1 else "faster"
    if max(ratio_of_times, 1 / max(ratio_of_times, 1e-9)) < 1 + SMALLEST_DELTA:
        verdict = "same"
    kind = "kernel" if on_device else "operator"
    first, second = (_side(report, name) for report, name in zip((a, b), names, strict=True))
    compared = Comparison(
        torchdoctor_version=__version__,
        a=first,
        b=second,
        verdict=verdict,
        answer=[
            fact(
                "calls-take-as-long" if verdict == "same" else "calls-changed",
                kind=kind,
                common=len(times),
                ratio=ratio_of_times,
            )
        ],
        ratio=ratio_of_times,
        per="call",
        parts_are="none",
        operators=_most_changed(operators, _host_s),
        kernels=_most_changed(kernels, _device_s),
        environment=environment(a, b),
        remarks=[
            Remark(severity="beware", fact="per-call"),
            Remark(severity="beware", fact="one-recording"),
        ],
    )
    return with_sentences(compared)


def _side(report: Report, name: str) -> ComparedSide:
    trace = report.trace
    steps = trace.steps if trace is not None else 0
    whole_s = (trace.step_s or 0.0) if trace is not None else 0.0
    return ComparedSide(
        name=name,
        kind="trace" if is_trace(report) else "run",
        step_s=whole_s,
        measured_as=fact("mean-of-traced-steps", steps=steps) if steps else fact("whole-trace"),
        command=report.workload.command,
        created=report.created,
    )


def _kernels(trace: TraceStatistics) -> dict[str, _Call]:
    def times(kernel: KernelTime) -> _Call:
        return kernel.calls_per_step, 0.0, kernel.device_s

    return {kernel.name: times(kernel) for kernel in trace.kernels if kernel.calls_per_step}


def _operators(trace: TraceStatistics) -> dict[str, _Call]:
    def times(operator: Operator) -> _Call:
        return operator.calls_per_step, operator.self_s, operator.device_s

    return {
        operator.name: times(operator) for operator in trace.operators if operator.calls_per_step
    }


def _changes(old: dict[str, _Call], new: dict[str, _Call]) -> list[OperatorChange]:
    """Return what both list, with times of one call."""
    changes = []
    for name in (name for name in old if name in new):
        (calls, host_s, device_s), (b_calls, b_host_s, b_device_s) = old[name], new[name]
        a_device_s = None if device_s is None else device_s / calls
        new_device_s = None if b_device_s is None else b_device_s / b_calls
        host_change_s = b_host_s / b_calls - host_s / calls
        device_change_s = (new_device_s or 0.0) - (a_device_s or 0.0)
        changes.append(
            OperatorChange(
                name=name,
                change="changed",
                change_s=max(host_change_s, device_change_s, key=abs),
                a_calls=calls,
                b_calls=b_calls,
                a_self_s=host_s / calls,
                b_self_s=b_host_s / b_calls,
                a_device_s=a_device_s,
                b_device_s=new_device_s,
            )
        )
    return changes


def _host_s(change: OperatorChange) -> tuple[float, float]:
    return change.a_self_s or 0.0, change.b_self_s or 0.0


def _device_s(change: OperatorChange) -> tuple[float, float]:
    return change.a_device_s or 0.0, change.b_device_s or 0.0


def _both(
    changes: Sequence[OperatorChange], times: Callable[[OperatorChange], tuple[float, float]]
) -> list[tuple[float, float, float]]:
    """Return A's calls and both times of one call, of what took time in A."""
    return [(change.a_calls or 0.0, *times(change)) for change in changes if times(change)[0]]


def _most_changed(
    changes: Sequence[OperatorChange], times: Callable[[OperatorChange], tuple[float, float]]
) -> list[OperatorChange]:
    """Return those whose calls changed, by what that comes to over A's calls, at most ten."""
    changed = [
        change
        for change in changes
        if abs(times(change)[1] - times(change)[0]) > _SAME * times(change)[0]
    ]
    return sorted(changed, key=lambda change: -abs(change.change_s) * (change.a_calls or 0.0))[
        :_MOST
    ]
