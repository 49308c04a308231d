"""Train on the GPU that idles beside the CPU.

## What it does
It names the lines: the model is moved once, each batch in the loop. Where torch was built without
CUDA it says so.

## Why it helps
A data centre GPU multiplies matrices ten to a hundred times as fast as the CPU beside it.

## Risks
Sums are formed in another order, and random numbers of a GPU differ. Very small models are as fast
on the CPU, because each operator costs a kernel launch.

## Make it permanent
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device)                       # before the optimizer is made
    for x, y in loader:
        x, y = x.to(device), y.to(device)

## Sources
- PyTorch, CUDA semantics: https://docs.pytorch.org/docs/stable/notes/cuda.html
"""

from torchdoctor.queries.lookup import place, training_models
from torchdoctor.queries.touched import operators_on_cpu
from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, fact, on_gpu, process


def refuses(recording: Recording) -> Evidence | None:
    if recording.has_gpu:
        return fact("model-on-gpu")
    idle = recording.trace is not None and recording.trace.idle_gpus
    return None if recording.environment.gpus or idle else fact("machine-without-gpu")


def instruction(settings: Settings, recording: Recording) -> str:
    lines = []
    if recording.main.cuda is None:
        lines.append("install a torch that was built with CUDA: pytorch.org/get-started/locally")
    optimizers = recording.main.optimizers
    where = place(recording, optimizers[0].location if optimizers else None, "the optimizer")
    lines.append(f'model = model.to("cuda")  # before {where}')
    for model in training_models(recording)[:1]:
        call = place(recording, model.call.location if model.call else None, "the model's call")
        lines.append(f'{call}  move the batch before it: x, y = x.to("cuda"), y.to("cuda")')
    return "\n".join(lines)


_MODELS = [{"ident": 0, "forwards": 9}]
_GPU = on_gpu("NVIDIA A100")

FIX = FixSpec(
    name="compute on the GPU",
    treats=("gpu-left-idle",),
    keeps_results="within rounding",
    untried="every tensor that meets the model has to move with it, which only the script knows.",
    touches=operators_on_cpu,
    refuses=refuses,
    sentences={
        "model-on-gpu": "The model is on a GPU already.",
        "machine-without-gpu": "The machine has no GPU.",
    },
    instruction=instruction,
    offers=[
        ({**process(cuda="12.8", models=_MODELS), **_GPU}, 'model.to("cuda")'),
        ({**process(models=_MODELS), **_GPU}, "built with"),
    ],
    refusals=[(process(models=_MODELS), "machine-without-gpu")],
)
