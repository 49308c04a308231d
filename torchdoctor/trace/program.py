"""What kind of program a trace is of: does it train, what serves it, and whose device it uses."""

import re

import numpy as np

from torchdoctor.trace.columns import Trace, once
from torchdoctor.trace.kinds import KERNEL, kernel_kinds
from torchdoctor.trace.metadata import dictionary
from torchdoctor.trace.threads import is_step, named, threads_of

_BACKWARD = re.compile(r"[bB]ackward|autograd::engine|AccumulateGrad")
_OPTIMIZER = re.compile(
    r"^Optimizer\.|_fused_(?:adam|sgd|adagrad)|_foreach_(?:add|mul|div|sqrt|lerp|norm)"
)
_ENGINE = re.compile(
    r"(?:^|/)(?:vllm|sglang|sgl_kernel|tensorrt_llm|lmdeploy)(?:/|::)|^_C_cache_ops::"
)
# Marks of each maker's software, in categories, metadata, names of devices and driver calls.
_PLATFORMS = {
    "mtia": re.compile(r"mtia"),
    "hpu": re.compile(r"hpu_"),
    "xpu": re.compile(r"xpu_|Intel\(R\)"),
    "rocm": re.compile(r"roctracer|rocprofiler|hip[A-Z_]|AMD |Instinct|Radeon"),
    "cuda": re.compile(
        r"cupti|cuda_(?:driver|runtime)_version|cu(?:da)?[A-Z]|NVIDIA|Tesla|GeForce"
    ),
}


def trains(trace: Trace) -> bool | None:
    """Return True if it has a backward pass or an optimizer, False if it is inference, or None."""
    operators, kernels = trace.operators, trace.device.where(trace.device["kind"] == KERNEL)
    if optimizes(trace) or any(named(trace, x, _BACKWARD.search).any() for x in trace.ranges):
        return True
    if named(trace, kernels, lambda name: "training" in kernel_kinds(name)).any():
        return True
    in_operators = named(trace, operators, lambda name: name.startswith("aten::")).any()
    whole = bool(in_operators and threads_of(trace, is_step).any())
    return False if whole or has_engine(trace) else None


@once
def optimizes(trace: Trace) -> bool:
    """Return True if marks or operators say that an optimizer steps."""
    return any(named(trace, table, _OPTIMIZER.search).any() for table in trace.ranges)


@once
def has_engine(trace: Trace) -> bool:
    """Return True if a server of language models ran, by its kernels, operators or files."""
    kernels = trace.device.where(trace.device["kind"] == KERNEL)
    serves = named(trace, kernels, lambda name: "inference" in kernel_kinds(name)).any()
    tables = (trace.operators, trace.python)
    return bool(serves) or any(named(trace, table, _ENGINE.search).any() for table in tables)


@once
def platform(trace: Trace) -> str | None:
    """Return whose device was recorded, by the software's marks; None: nothing says it."""
    properties = trace.metadata.get("deviceProperties")
    devices = map(dictionary, properties if isinstance(properties, list) else [])
    calls = [trace.names[name] for name in np.unique(trace.runtime.name).tolist()]
    for marks in (trace.categories, calls, trace.metadata, (str(x.get("name")) for x in devices)):
        text = "\n".join(marks)
        for maker, mark in _PLATFORMS.items():
            if mark.search(text):
                return maker
    return None
