"""What kind of program a trace is of: does it train, what serves it, and whose devices it uses."""

import re
from typing import Any

import numpy as np

from torchdoctor.schema import Gpu
from torchdoctor.schema.intervals import subtract
from torchdoctor.trace.columns import Trace, named, once
from torchdoctor.trace.foreign import dictionaries, dictionary, text, whole_number
from torchdoctor.trace.kinds import KERNEL, kernel_kinds
from torchdoctor.trace.loop_marks import is_step, threads_of
from torchdoctor.trace.timeline import Timeline, host_collectives

_BACKWARD = re.compile(r"[bB]ackward|autograd::engine|AccumulateGrad")
_STEPS = re.compile(r"^Optimizer\.|_fused_(?:adam|sgd|adagrad)|_foreach_(?:add|mul|div|lerp|norm)")
_ENGINE = re.compile(
    r"(?:^|/)(?:vllm|sglang|sgl_kernel|tensorrt_llm|lmdeploy)(?:/|::)|^_C_cache_ops::"
)
_NAMED_ENGINE = re.compile(r"(?:^|/)(vllm|sglang|sgl_kernel|tensorrt_llm|trtllm|lmdeploy)(?:/|::)")
_ENGINES = {"sgl_kernel": "sglang", "trtllm": "tensorrt_llm"}  # parts of one, by other names
_COMPILED = re.compile(
    r"^triton_(?:poi|red|per|for|tem|unk|mm|bmm)_|CompiledFunction|Torch-Compiled Region"
)
_DROPPED = re.compile(r"aten::(?:native_dropout|_fused_dropout)$")
# What batch norm runs in training alone, of PyTorch, cuDNN and MIOpen.
_TRAINED_NORM = re.compile(
    r"batch_norm_collect_statistics|bn_fw_tr_|batchnorm_fwtr|MIOpenBatchNormFwdTrain"
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
    operators = trace.operators
    kernels = trace.device.where(trace.device["kind"] == KERNEL)
    if optimizes(trace) or any(
        named(trace, table, _BACKWARD.search).any() for table in trace.ranges
    ):
        return True
    if named(trace, kernels, lambda name: "training" in kernel_kinds(name)).any():
        return True
    in_operators = named(trace, operators, lambda name: name.startswith("aten::")).any()
    whole = bool(in_operators and threads_of(trace, is_step).any())
    return False if whole or has_engine(trace) else None


def optimizes(trace: Trace) -> bool:
    """Return True if marks or operators say that an optimizer steps."""
    return any(named(trace, table, _STEPS.search).any() for table in trace.ranges)


@once
def has_engine(trace: Trace) -> bool:
    """Return True if a server of language models ran, by its kernels, operators or files."""
    kernels = trace.device.where(trace.device["kind"] == KERNEL)
    serves = named(trace, kernels, lambda name: "inference" in kernel_kinds(name)).any()
    tables = (trace.operators, trace.python)
    return bool(serves) or any(named(trace, table, _ENGINE.search).any() for table in tables)


@once
def engine(trace: Trace) -> str | None:
    """Return which server of language models ran, as its package is called; None: not known."""
    for table in (trace.python, trace.operators, trace.device):
        for number in np.unique(table.name).tolist():
            if match := _NAMED_ENGINE.search(trace.names[number]):
                return _ENGINES.get(match[1], match[1])
    return None


def compiled(trace: Trace) -> bool:
    """Return True if code of torch.compile ran."""
    tables = (trace.operators, trace.annotations, trace.device)
    return any(named(trace, table, _COMPILED.search).any() for table in tables)


def training_mode(trace: Trace) -> dict[str, Any]:
    """Return how many calls of the whole trace show that modules are in training mode."""
    operators = trace.operators
    dropouts = named(trace, operators, _DROPPED.match).sum()
    if named(trace, operators, lambda name: name.endswith("dropout")).any():
        # On a CPU dropout draws its mask so, and nothing by this name where it is switched off.
        dropouts += named(trace, operators, "aten::bernoulli_".__eq__).sum()
    norms = named(trace, trace.device, _TRAINED_NORM.search).sum()
    return {"active_dropouts": int(dropouts), "training_norms": int(norms)}


@once
def platform(trace: Trace) -> str | None:
    """Return whose device was recorded, by the software's marks; None: nothing says it."""
    devices = dictionaries(trace.metadata.get("deviceProperties"))
    calls = [trace.names[name] for name in np.unique(trace.runtime.name).tolist()]
    for marks in (
        trace.categories,
        calls,
        trace.metadata,
        (str(device.get("name")) for device in devices),
    ):
        text = "\n".join(marks)
        for maker, mark in _PLATFORMS.items():
            if mark.search(text):
                return maker
    return None


def gpus(trace: Trace) -> list[Gpu]:
    """Return each device that was used and described, if only as those that are all alike."""
    described = dictionaries(trace.metadata.get("deviceProperties"))
    alike = {
        (text(dictionary.get("name")), whole_number(dictionary.get("totalGlobalMem")))
        for dictionary in described
    }
    by_id = {whole_number(dictionary.get("id")): dictionary for dictionary in described}
    used_gpus = []
    for index in sorted(set(trace.device["device"].tolist()) - {-1}):
        properties = by_id.get(index) or (described[0] if len(alike) == 1 else {})
        major, minor = (whole_number(properties.get(k)) for k in ("computeMajor", "computeMinor"))
        # Others number their devices otherwise than CUDA does.
        capability = None if major is None or platform(trace) == "rocm" else f"{major}.{minor or 0}"
        if properties:
            used_gpus.append(
                Gpu(
                    index=index,
                    name=text(properties.get("name"))
                    or ("AMD GPU" if platform(trace) == "rocm" else "GPU"),
                    memory_bytes=whole_number(properties.get("totalGlobalMem")),
                    compute_capability=capability,
                )
            )
    return used_gpus


def idle_gpus(trace: Trace) -> list[str]:
    """Return the names of the devices that the trace lists where nothing ran on any of them."""
    if trace.has_device:
        return []
    described = dictionaries(trace.metadata.get("deviceProperties"))
    return sorted(filter(None, (text(device.get("name")) for device in described)))


def backend_of(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Return fields of `TraceStatistics`; empty if the trace names no distributed job."""
    information = dictionary(trace.metadata.get("distributedInfo"))
    if not information:
        return {}
    world_size = whole_number(information.get("world_size")) or 0
    fields: dict[str, Any] = {"backend": text(information.get("backend"))}
    fields["world_size"] = world_size if world_size > 0 else None
    on_host = host_collectives(trace).spans()
    if trace.has_device and len(on_host):
        steps = timeline.steps
        not_hidden = subtract(on_host, timeline.branches["gpu"])
        spent = not_hidden.covered(steps.start, steps.end).sum()
        fields["host_collective_s"] = float(spent) / len(steps) / 1e9
    return fields
