"""A model computes in float16 on a CPU.

## What it means
Most CPUs have no fast instructions for float16: many operations convert to float32 and back, and
matrix products are several times slower.

## What to do
Compute in float32: leave out `.half()` and `torch_dtype=torch.float16`. Use bfloat16 where the CPU
has instructions for it (amx_bf16, avx512_bf16).

## How it is measured
The probe reads the device and the data types of each model's parameters. The share is that of
forward, backward and optimizer. The line that is named called `Module.half` or `Module.to`.

## Not to be confused with
float16 on a GPU, which has units for it.
"""

from torchdoctor.queries.arithmetic import half_location, half_models
from torchdoctor.queries.lookup import phase_share
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    models = half_models(recording)
    if not models:
        return
    share = phase_share(recording, "forward_s", "backward_s", "optimizer_s") or None
    evidence = [fact("float16", model=models[0].cls.rpartition(".")[2] or "the model")]
    evidence += [fact("takes", share=share)] if share is not None else []
    location = half_location(recording) or models[0].location
    yield Symptom(share=share, evidence=evidence, location=location, severity="high")


_MODEL = {"ident": 0, "forwards": 9, "device": "cpu"}
CHECK = CheckSpec(
    branch="cpu",
    threshold=1,
    unit="model in float16 on a CPU",
    source="torchdoctor: a single model suffices",
    sentences={
        "float16": "The parameters of {model} are in float16, on a CPU.",
        "takes": "Forward, backward and optimizer take {share:.0%} of {each_step} in it.",
    },
    examine=_examine,
    closes_verdict=True,
    fires=[process(models=[{**_MODEL, "dtypes": ["float16"]}])],
    quiet=[
        process(models=[{**_MODEL, "dtypes": ["float32"]}]),
        process(models=[{**_MODEL, "dtypes": ["float16"], "device": "cuda:0"}]),
    ],
)
