"""Very many operators, each of them tiny.

## What it means
Launching an operator costs the host microseconds, however small it is; a compiler fuses them.

## How it is measured
On a GPU, a step has at least 50 kernels, most take under 10 microseconds, and in over 30 % of it no
kernel runs while the host launches or runs Python. On the CPU, a step has hundreds of operators
whose median is under 50 microseconds and that together take more time than the large ones, the
optimizer's loop over its tensors left out (single-tensor-optimizer).

## Not to be confused with
Python work between operators, which a compiler removes only where it sees it.
"""

from torchdoctor.queries.lookup import overhead_share, phase_share, updates_one_by_one
from torchdoctor.queries.loops import inner_loops
from torchdoctor.queries.stacks import forward_line
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, TraceStatistics, fact, trace

_LAUNCHING = 0.3  # share of the step
_MOSTLY = 0.5  # of them, that are made in one loop
_MOST_BUSY = 0.5  # share of the step in which kernels run
_FEWEST_KERNELS = 50  # of a step: what fewer cost is Python
_MOST_MEDIAN_US, _FEWEST_CALLS = 50.0, 300  # operators of a step without a GPU


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    if traced is not None and traced.step_s:
        yield from _on_gpu(recording, traced) if traced.has_device else _on_cpu(recording, traced)


def _on_gpu(recording: Recording, traced: TraceStatistics) -> Symptoms:
    short = traced.short_kernels_share
    busy = traced.gpu_busy_share
    if short is None or busy is None or short < CHECK.threshold or busy > _MOST_BUSY:
        return
    shares = traced.shares if recording.shares.gpu is None else recording.shares
    host = (shares.cpu or 0.0) + (shares.other or 0.0)
    blocked = ((traced.blocking_copy_s or 0.0) + (traced.sync_s or 0.0)) / (traced.step_s or 1.0)
    # More driver time than the operators and Python around it take allocates or loads.
    share = host + min(max((shares.runtime or 0.0) - blocked, 0.0), host)
    if share >= _LAUNCHING and (traced.kernels_per_step or 0) >= _FEWEST_KERNELS:
        kernels = traced.kernels_per_step or 0
        computes = shares.gpu or busy
        evidence = fact("kernels", kernels=kernels, short=short, computes=computes)
        line = forward_line(recording)
        yield Symptom(share=share, evidence=evidence, location=line, severity="high")


def _on_cpu(recording: Recording, traced: TraceStatistics) -> Symptoms:
    overhead = overhead_share(recording)
    median = traced.operator_median_us
    calls = traced.operator_calls_per_step
    if overhead is None or median is None or calls is None:
        return
    if any(map(updates_one_by_one, recording.main.optimizers)):  # another check counts those
        overhead -= phase_share(recording, "optimizer_s") or 0.0
    if overhead >= CHECK.threshold and median <= _MOST_MEDIAN_US and calls >= _FEWEST_CALLS:
        evidence = fact("operators", share=overhead, operators=calls, median_us=median)
        # A loop of the program's own is where most of them are made, and what can be changed.
        loops = [loop for loop in inner_loops(recording) if loop.share >= _MOSTLY * overhead]
        line = loops[0].location if loops else forward_line(recording)
        yield Symptom(share=overhead, evidence=evidence, location=line, severity="high")


_TINY = {"operator_median_us": 6.0, "operator_calls_per_step": 900.0}
_CPU = {**_TINY, "python_s": 0.03, "small_operator_s": 0.06}
_KERNELS = {"kernels_per_step": 400.0, "short_kernels_share": 0.9, "gpu_busy_share": 0.1}
_GPU = {"has_device": True, **_KERNELS}
_LAUNCHES = {"gpu": 0.1, "cpu": 0.5, "runtime": 0.2, "other": 0.2}
_BLOCKED = {"gpu": 0.1, "cpu": 0.1, "runtime": 0.75, "other": 0.05}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.5,
    unit="% of the kernels under 10 us; without a GPU, of the step around operators",
    source="torchdoctor; XProf marks launching from 3 % of the step on, as high from 15 %",
    sentences={
        "kernels": "{kernels:counted kernel} {a_step}, {short:.0%} of them under 10 us, and the "
        "{device} computes {computes:.0%} of {the_step}.",
        "operators": "{operators:.0f} operators {a_step} with a median of {median_us:.0f} us; "
        "they and what is around them take {share:.0%} of {profiled_step}.",
    },
    examine=_examine,
    fires=[trace(**_CPU), trace(**_GPU, shares=_LAUNCHES)],
    quiet=[
        # Blocked in copies: the GPU is idle, but not for want of launches.
        trace(**_GPU, blocking_copy_s=0.07, shares=_BLOCKED),
        trace(**{**_GPU, "kernels_per_step": 15.0}, shares=_LAUNCHES),
        trace(**{**_CPU, "small_operator_s": 0.01}),
    ],
)
