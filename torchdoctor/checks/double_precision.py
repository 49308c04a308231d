"""The model trains in double precision (float64).

## What it means
Training a network needs float32 at most. float64 is mostly a mistake: NumPy's numbers are float64,
`torch.from_numpy` keeps them so, and `model.double()` makes the error about data types go away. It
takes twice the memory and about twice the time on a CPU. GPUs for data centres compute half as much
in it as in float32, all others 32 to 64 times less, and tensor cores lie idle.

## How it is measured
More than half of the parameters are float64, and large operators take a good part of the step.
Without a profiler window, forward, backward and optimizer count instead. Operators that only look
rows up or scatter them (embedding, index_select) do not count. The line that is named called
`Module.double`, `Module.to` or `torch.set_default_dtype`.

## Not to be confused with
Programs that need the digits: solvers, simulations, Gaussian processes, second derivatives of
physics-informed networks, checks of gradients. A loss added up in float64 costs next to nothing.
"""

from torchdoctor.queries.arithmetic import double_location, double_models, made_double
from torchdoctor.queries.gpu_data_sheets import data_sheet
from torchdoctor.queries.lookup import arithmetic_share, phase_share
from torchdoctor.schema import (
    CheckSpec,
    Evidence,
    Recording,
    Symptom,
    Symptoms,
    fact,
    on_gpu,
    process,
    trace,
)

_MUCH = 0.6


def _examine(recording: Recording) -> Symptoms:
    models = double_models(recording)
    share = arithmetic_share(recording)
    working = "large-operators"
    if share is None:
        share = phase_share(recording, "forward_s", "backward_s", "optimizer_s")
        working = "phases"
    if not models or share is None or share < CHECK.threshold:
        return
    model = models[0]
    call = made_double(recording)
    made_by = None
    if call is not None:
        owner = "Module." if call.kind == "model" else "torch."
        made_by = f"{owner}{call.name}"
    parameters = fact(
        "parameters",
        location=call.location if call is not None else None,
        doubles=model.float64_elements,
        elements=model.elements,
        model=model.cls.rpartition(".")[2] or "the model",
        made_by=made_by,
    )
    yield Symptom(
        share=share,
        evidence=[parameters, fact(working, share=share), _cost(recording)],
        location=double_location(recording),
        severity="high" if share >= _MUCH or recording.has_gpu else "moderate",
    )


def _cost(recording: Recording) -> Evidence:
    """Return what float64 costs on this hardware, by its data sheet where that is known."""
    if not recording.has_gpu:
        return fact("cpu-cost")
    gpus = recording.environment.gpus
    sheet = data_sheet(gpus[0].name) if gpus else None
    if sheet is None or "float64" not in sheet.tflops:
        return fact("gpu-cost-unknown")
    double, single, half = (sheet.tflops.get(p) for p in ("float64", "float32", "float16"))
    return fact("gpu-cost", gpu=sheet.name, double=double, single=single, half=half)


_NET = {"ident": 0, "cls": "__main__.Net", "elements": 1000, "forwards": 9}
_DOUBLE = {**_NET, "float64_elements": 1000}
_MADE = {"kind": "model", "name": "double", "location": {"file": "/w/train.py", "line": 9}}
_V100 = on_gpu("Tesla V100-SXM2-16GB", compute_capability="7.0")
CHECK = CheckSpec(
    branch="gpu",
    threshold=0.3,
    unit="% of the step in large operators",
    source="torchdoctor: as for low precision",
    sentences={
        "parameters": "{doubles:,} of {elements:,} parameters of {model} are float64 (double "
        "precision)[, made so by {made_by}][ at {location:place}].",
        "large-operators": "{share:.0%} of {each_step} is large operators.",
        "phases": "Forward, backward and optimizer take {share:.0%} of {each_step}.",
        "cpu-cost": "In float64 a CPU computes half as many numbers at once as in float32.",
        "gpu-cost-unknown": "GPUs for data centres compute half as much in float64 as in float32, "
        "others 32 to 64 times less.",
        "gpu-cost": "The {gpu} computes at most {double:g} TFLOP/s in float64, {single:g} in "
        "float32 and {half:g} in 16 bits.",
    },
    examine=_examine,
    fires=[
        {**trace(compute_s=0.08), **process(models=[_DOUBLE], double_calls=[_MADE])},
        {**_V100, "shares": {"gpu": 0.5}, **process(models=[{**_DOUBLE, "device": "cuda:0"}])},
        {"steps": {"forward_s": 0.003, "backward_s": 0.005}, **process(models=[_DOUBLE])},
    ],
    quiet=[
        {**trace(compute_s=0.02), **process(models=[_DOUBLE])},
        {**trace(compute_s=0.08, gather_s=0.06), **process(models=[_DOUBLE])},
        {**trace(compute_s=0.08), **process(models=[{**_DOUBLE, "float64_elements": 400}])},
        # A teacher in float64 that is only evaluated.
        {**trace(compute_s=0.08), **process(models=[{**_DOUBLE, "eval_forwards": 9}])},
    ],
)
