"""The machine has GPUs that this program does not use.

## What it means
The model computes on the CPU while a GPU idles, or on one of several GPUs. A GPU multiplies
matrices ten to a hundred times as fast as a CPU; several of them share the batches.

## How it is measured
torchdoctor compares the GPUs that the driver (NVML) reports with the devices of the model and the
optimizers, and with the number of GPUs that torch sees. It also looks for other programs on them.
Of a trace it reads which GPUs are listed: if nothing ran on any, the model is on the CPU, or the
profiler was not told to record the GPU.

## Not to be confused with
A choice by `CUDA_VISIBLE_DEVICES`. Very small models, which a CPU trains as fast.
"""

from torchdoctor.queries.lookup import training_models
from torchdoctor.schema import (
    CheckSpec,
    Recording,
    Symptom,
    Symptoms,
    TraceStatistics,
    fact,
    on_gpu,
    process,
    trace,
)


def _examine(recording: Recording) -> Symptoms:
    if recording.trace is not None and not recording.processes:
        yield from _of_trace(recording.trace)
        return
    gpus = recording.environment.gpus
    main = recording.main
    one_device = len({model.device for model in main.models}) < 2
    parallel = not one_device or any(model.data_parallel for model in main.models)
    called = training_models(recording) or [model for model in main.models if model.forwards]
    if not gpus or not called or recording.sensors.gpu_other_processes:
        return
    if "CUDA_VISIBLE_DEVICES" in main.flags.environment:
        return
    if not recording.has_gpu:
        names = sorted({gpu.name for gpu in gpus})
        without_cuda = main.torch if main.cuda is None else None
        evidence = fact("on-cpu", number=len(gpus), names=names, without_cuda=without_cuda)
        yield Symptom(evidence=evidence, severity="moderate")
    elif len(main.devices) > 1 and (main.world_size or 1) == 1 and not parallel:
        one_of_several = fact("others-idle", number=len(main.devices))
        yield Symptom(evidence=one_of_several, severity="advice")


def _of_trace(traced: TraceStatistics) -> Symptoms:
    """Yield that listed GPUs did nothing, unless the host launched work that was not recorded."""
    if not traced.idle_gpus or any("Launch" in call.name for call in traced.runtime_calls):
        return
    number = len(traced.idle_gpus)
    names = sorted(set(traced.idle_gpus))
    listed = "listed-one-idle" if number == 1 else "listed-idle"
    yield Symptom(evidence=fact(listed, number=number, names=names), severity="moderate")


_NOTHING_RAN = (
    "and nothing ran there: the model is on the CPU, or the profiler was not told to record the "
    "{device} (ProfilerActivity.CUDA)."
)
_A100 = on_gpu("NVIDIA A100")
_LAUNCHES = {"name": "cudaLaunchKernel", "calls_per_step": 9.0, "host_s": 0.01}
_MODEL = {"ident": 0, "forwards": 60, "device": "cpu"}
_ON_GPU = {**_MODEL, "device": "cuda:0"}
CHECK = CheckSpec(
    branch="gpu",
    threshold=1,
    unit="GPU that the program does not use",
    source="torchdoctor: a GPU that nobody uses",
    sentences={
        "on-cpu": "The model is on the CPU, and the machine has {number} x {names:list}.[ This "
        "torch ({without_cuda}) was built without CUDA.]",
        "others-idle": "One of {number} {device}s trains; the others idle.",
        "listed-one-idle": f"The trace lists {{names:list}}, {_NOTHING_RAN}",
        "listed-idle": f"The trace lists {{number}} {{device}}s ({{names:list}}), {_NOTHING_RAN}",
    },
    opens_verdict=True,
    examine=_examine,
    fires=[
        {**_A100, **process(models=[_MODEL])},
        {**_A100, **process(cuda="12.8", devices=["NVIDIA A100"] * 2, models=[_ON_GPU])},
        {**_A100, **process(models=[{**_MODEL, "eval_forwards": 60}])},
        {"processes": [], **trace(idle_gpus=["NVIDIA A100"])},
    ],
    quiet=[
        {**_A100, **process(models=[_MODEL], flags={"environment": {"CUDA_VISIBLE_DEVICES": ""}})},
        {**_A100, **process(models=[_ON_GPU])},
        process(models=[_MODEL]),
        {"processes": [], **trace(idle_gpus=["NVIDIA A100"], runtime_calls=[_LAUNCHES])},
    ],
)
