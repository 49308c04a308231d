"""The machine has GPUs that this training does not use.

What it means
-------------
The model trains on the CPU while a GPU idles, or on one of several GPUs. A GPU multiplies matrices
ten to a hundred times as fast as a CPU; several of them share the batches.

How it is measured
------------------
The GPUs that the driver (NVML) reports, against the device of the model and of the optimizers, and
the number of GPUs that torch sees in the process. Other programs on the GPUs are looked for too.

Not to be confused with
-----------------------
`CUDA_VISIBLE_DEVICES`, by which somebody chose: then nothing is said. Very small models, which a
CPU trains as fast.
"""

from collections.abc import Iterator

from torchdoctor.facts.lookup import training_models
from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 1


def _examine(recording: Recording) -> Iterator[Symptom]:
    gpus, main = recording.environment.gpus, recording.main
    models = training_models(recording)
    if not gpus or not models or "CUDA_VISIBLE_DEVICES" in main.flags.environment:
        return
    if recording.sensors.gpu_other_processes:
        return
    if not recording.has_gpu:
        names = ", ".join(sorted({gpu.name for gpu in gpus}))
        evidence = f"The model is on the CPU, and the machine has {len(gpus)} x {names}."
        if main.cuda is None:
            evidence += f" This torch ({main.torch}) was built without CUDA."
    elif len(main.devices) > 1 and (main.world_size or 1) == 1 and not _parallel(recording):
        evidence = f"One of {len(main.devices)} GPUs trains; the others idle."
    else:
        return
    yield Symptom(
        evidence=[evidence],
        severity="moderate" if not recording.has_gpu else "advice",
    )


def _parallel(recording: Recording) -> bool:
    devices = {model.device for model in recording.main.models}
    return len(devices) > 1 or any(model.data_parallel for model in recording.main.models)


_GPU = {"index": 0, "name": "NVIDIA A100"}
_MODEL = {"ident": 0, "forwards": 60, "device": "cpu"}

CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="gpu",
    threshold=THRESHOLD,
    unit="GPU that the program does not use",
    source="torchdoctor: a GPU that nobody uses",
    examine=_examine,
    fires=[
        {"environment": {"gpus": [_GPU]}, "processes": [{"pid": 1, "models": [_MODEL]}]},
        {
            "environment": {"gpus": [_GPU, {**_GPU, "index": 1}]},
            "processes": [
                {
                    "pid": 1,
                    "cuda": "12.8",
                    "devices": ["NVIDIA A100", "NVIDIA A100"],
                    "models": [{**_MODEL, "device": "cuda:0"}],
                }
            ],
        },
    ],
    quiet=[
        {
            "environment": {"gpus": [_GPU]},
            "processes": [
                {
                    "pid": 1,
                    "models": [_MODEL],
                    "flags": {"environment": {"CUDA_VISIBLE_DEVICES": ""}},
                }
            ],
        },
        {
            "environment": {"gpus": [_GPU]},
            "processes": [{"pid": 1, "models": [{**_MODEL, "device": "cuda:0"}]}],
        },
        {"processes": [{"pid": 1, "models": [_MODEL]}]},
    ],
)
