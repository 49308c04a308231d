"""Ranks and operators of a trace as lines of text."""

from torchdoctor.queries import scaling
from torchdoctor.reports.vocabulary import step_of
from torchdoctor.schema import MatrixWork, Operator, Report, TraceStatistics
from torchdoctor.schema.figures import clean, counted, percent, seconds
from torchdoctor.schema.traced import KNOWN_ENOUGH

_MOST = 5
_NAME = 40
_WORTH = 0.01  # of the step
_ROUNDING = 0.005  # of the step
_AT_ONCE = 1.05  # times the time that any thread is in a call: more are several at once


def lines(report: Report) -> list[tuple[str, list[str]]]:
    """Return what the trace says beside the findings: titles, and the lines below each."""
    trace = report.trace
    profiled = ""
    of = f"per {step_of(report)}" if trace is None or trace.steps else "in the whole trace"
    parts = [(f"The ranks, {of}", rank_lines(report))]
    if trace is not None and trace.step_s:
        # A run's other figures are of launches without a profiler.
        if trace.steps and report.steps is not None:
            profiled = f" of {seconds(trace.step_s)} under the profiler"
        stacks = "Where the host is while no device works, by the trace's Python stacks"
        parts += [
            (f"{stacks}, {of}", _place_lines(trace, trace.step_s)),
            (f"Collectives, {of}", _collective_lines(report, trace)),
            (f"Driver calls that hold the host, {of}", call_lines(trace, trace.step_s)),
            (f"The most expensive operators, {of}{profiled}", operator_lines(trace, trace.step_s)),
            (f"Arithmetic of the GPU, {of}", _arithmetic_lines(report, trace)),
        ]
    if report.steps is None:  # a run's offered fixes say it beside their code
        parts.append((scaling.TITLE, scaling.scaling_lines(report.scaling)))
    return parts


def rank_lines(report: Report) -> list[str]:
    """Return a line for each rank: its step, and what of it is its own, collectives and data."""
    lines = []
    whole = "step " if report.trace is None or report.trace.steps else ""
    for rank in report.ranks:
        exposed = rank.communication_exposed_s or 0.0
        parts = [f"own {seconds(rank.step_s - exposed)}", f"collectives {seconds(exposed)}"]
        if rank.wait_s is not None:
            parts.append(f"waits for others in collectives {seconds(rank.wait_s)}")
        if rank.last_share:
            parts.append(f"comes last to {percent(rank.last_share)} of them")
        if rank.data_loader_s >= _WORTH * rank.step_s:
            parts.append(f"waits for data {seconds(rank.data_loader_s)}")
        lines.append(f"rank {rank.rank}: {whole}{seconds(rank.step_s)} ({', '.join(parts)})")
    return lines


def _collective_lines(report: Report, trace: TraceStatistics) -> list[str]:
    """Return what each kind of collective takes, moves and reaches."""
    lines = []
    for kind in trace.collectives[:_MOST]:
        parts = [seconds(kind.device_s), counted(kind.calls_per_step, "call")]
        if kind.bytes_per_step is not None:
            moved = kind.bytes_per_step
            parts.append(f"{moved / 1e9:.3g} GB" if moved >= 1e9 else f"{moved / 1e6:.3g} MB")
        if kind.best_bytes_per_s is not None:
            parts.append(f"at best {kind.best_bytes_per_s / 1e9:.3g} GB/s (bus bandwidth)")
        lines.append(f"{kind.kind}: {', '.join(parts)}")
    return lines


def call_lines(trace: TraceStatistics, step_s: float) -> list[str]:
    """Return the driver calls that hold the host most, by the time that any thread is in them."""
    lines = []
    for call in trace.runtime_calls[:_MOST]:
        if call.host_s < _WORTH * step_s:
            continue
        covered_s = call.host_s if call.covered_s is None else call.covered_s
        share = percent(covered_s / step_s)
        if call.host_s > _AT_ONCE * covered_s:
            share += f"; {seconds(call.host_s)} added up over {call.threads} threads"
        name = " in ".join(_short(part) for part in (call.name, call.operator) if part)
        calls = counted(call.calls_per_step, "call")
        lines.append(f"{clean(name)}: {seconds(covered_s)} ({share}), {calls}")
    return lines


def _short(name: str) -> str:
    name = name.removeprefix("autograd::engine::evaluate_function: ")
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."


def _place_lines(trace: TraceStatistics, step_s: float) -> list[str]:
    """Return the lines of Python that the host is in while the device waits."""
    lines = []
    for place in trace.python_places:
        parts = (
            ("waiting for data", place.data_loader_s),
            ("driver calls", place.runtime_s),
            ("operators", place.cpu_s),
            ("Python", place.other_s),
        )
        large_parts = [
            f"{name} {seconds(spent)}" for name, spent in parts if spent >= 0.1 * place.total_s
        ]
        where = f"{place.file}:{place.line} {place.function}"
        if place.function == "<module>":  # its line is the one that ran as the recording began
            where = f"{place.file}, outside its functions"
        share = percent(place.total_s / step_s)
        lines.append(
            f"{clean(where)}: {seconds(place.total_s)} ({share}; {', '.join(large_parts)})"
        )
    return lines


def operator_lines(trace: TraceStatistics, step_s: float) -> list[str]:
    """Return the operators that take most of the device, or without one of the host."""

    def cost_s(operator: Operator) -> float:
        return (operator.device_s or 0.0) if trace.has_device else operator.self_s

    lines = []
    for operator in sorted(trace.operators, key=cost_s, reverse=True)[:_MOST]:
        of_step = cost_s(operator) / step_s
        share = "threads added up" if of_step > 1.0 + _ROUNDING else percent(of_step)
        cost = f"{seconds(cost_s(operator))} ({share})"
        if of_step > 0:
            name = _short(clean(operator.name))
            lines.append(f"{name}: {cost}, {counted(operator.calls_per_step, 'call')}")
    return lines


def _arithmetic_lines(report: Report, trace: TraceStatistics) -> list[str]:
    """Return FLOPs, MFU and the products that take most; why not, where they are not measured."""
    if not trace.has_device:
        return []
    work = trace.matrix_work
    if work is None:
        return [
            "MFU: not measured (the trace has no matrix product with input sizes; record with "
            "record_shapes=True)"
        ]
    units = (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 0.0))
    unit = next(name for name, least in units if work.flops >= least)
    size = dict(units)[unit] or 1e6
    lines = [
        f"{work.flops / size:.3g} {unit} in matrix products: {seconds(work.device_s)} of kernels",
        f"MFU: {_mfu(report, work)}",
    ]
    for product in work.products[:_MOST]:
        parts = [
            product.precision or "precision not known",
            counted(product.calls_per_step, "call"),
        ]
        if product.peak_share is not None:
            parts.append(f"{percent(product.peak_share)} of peak")
        if product.compute_bound is not None:
            parts.append("compute-bound" if product.compute_bound else "memory-bound")
        if product.device_s > 0:
            name = clean(f"{product.operator} {product.sizes}")
            lines.append(f"{name}: {seconds(product.device_s)} ({', '.join(parts)})")
    return lines


def _mfu(report: Report, work: MatrixWork) -> str:
    if work.mfu is not None:
        reached = "" if work.peak_share is None else f"; {percent(work.peak_share)} while they run"
        return f"{percent(work.mfu)} of the dense peak of the {work.gpu}{reached}"
    if work.known_share < KNOWN_ENOUGH:
        return (
            f"not measured (only {percent(work.known_share)} of the matrix kernels' time is of "
            "operators with recorded sizes; replayed CUDA graphs have none)"
        )
    names = sorted({clean(gpu.name) for gpu in report.environment.gpus})
    if not names:
        return "not measured (the trace does not name its GPU, whose data sheet would say the peak)"
    return f"not measured (no data sheet figures for {', '.join(names)} in this precision)"
