"""The host draws random numbers that the GPU then waits for.

## What it means
`torch.randn(n).to(device)` draws each number on one core of the CPU and copies it: some
nanoseconds a number, while the GPU waits. A GPU draws them in a kernel that takes hardly any time.

## How it is measured
The profiler's trace gives the host's time in operators that draw (normal_, uniform_, bernoulli_ and
others) and launch nothing on the device, in steps that copy to the device. It counts as far as the
GPU waits for operators of the host.

## Not to be confused with
Random choices of a loader's workers, which no trace of the main process shows.
"""

import re

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, trace

_DRAWS = re.compile(
    r"aten::(?:normal|uniform|bernoulli|random|exponential|cauchy|log_normal|geometric)_?$"
    r"|aten::(?:multinomial|poisson|randperm)$"
)


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    if traced is None or not traced.has_device or not traced.step_s:
        return
    drawing = [
        operator
        for operator in traced.operators
        if _DRAWS.match(operator.name) and not operator.device_s and not operator.calling_s
    ]
    copied = traced.h2d_bytes is None or traced.h2d_bytes > 0
    waits = (traced.shares.cpu or 0.0) + (traced.shares.runtime or 0.0)
    share = min(sum(operator.self_s for operator in drawing) / traced.step_s, waits)
    if not drawing or not copied or share < CHECK.threshold:
        return
    most = max(drawing, key=lambda operator: operator.self_s)
    draws = fact(
        "draws", share=share, name=most.name, shapes=most.shapes or None, seconds=most.self_s
    )
    yield Symptom(share=share, evidence=draws)


_DRAWN = {"name": "aten::normal_", "calls_per_step": 1.0, "self_s": 0.04}
_STEP = {"has_device": True, "h2d_bytes": 4096, "shares": {"gpu": 0.5, "cpu": 0.45}}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor: a twentieth of the step is worth a line",
    sentences={
        "draws": "{name}[ of {shapes}] draws random numbers on the CPU, {seconds:seconds} in "
        "{each_step}, and the {device} waits for them: draw them on the device.",
    },
    examine=_examine,
    fires=[trace(**_STEP, operators=[_DRAWN])],
    quiet=[
        trace(**_STEP, operators=[{**_DRAWN, "device_s": 0.001}]),
        trace(**{**_STEP, "h2d_bytes": 0}, operators=[_DRAWN]),
        trace(**_STEP, operators=[{**_DRAWN, "self_s": 0.0001}]),
    ],
)
