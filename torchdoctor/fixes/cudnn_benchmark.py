"""Let cuDNN time its convolution algorithms and keep the fastest.

## What it does
Sets `torch.backends.cudnn.benchmark = True`. For each new combination of convolution and input
shape, cuDNN then times its algorithms once and uses the fastest from there on.

## Why it helps
Which algorithm is fastest depends on sizes, strides, data type and GPU; else a heuristic chooses.

## Risks
The chosen algorithm may round differently, and may differ from run to run. Every new input shape
costs a round of timing, so more than two input shapes are refused. Some algorithms need more
memory. It does not go together with `torch.use_deterministic_algorithms`.

## Make it permanent
    torch.backends.cudnn.benchmark = True      # near the beginning of the script

## Sources
- PyTorch Tuning Guide, cuDNN: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from typing import Any

from torchdoctor.edits.calls import on_top
from torchdoctor.queries.lookup import convolves, training_models
from torchdoctor.queries.touched import convolutions
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, fact

_MOST_SHAPES = 2  # the usual batch and a smaller last one
_STATEMENT = "torch.backends.cudnn.benchmark = True"


def refuses(recording: Recording) -> Evidence | None:
    if not recording.has_gpu:
        return fact("no-cuda-gpu")
    flags = recording.main.flags
    if flags.cudnn_benchmark:
        return fact("auto-tuner-on")
    if flags.deterministic or flags.cudnn_deterministic:
        return fact("deterministic-algorithms")
    models = training_models(recording)
    convolving = recording.trace is not None and convolves(recording.trace)
    if not any(m.conv2d for m in models) and not convolving:
        return fact("no-convolutions")
    varying = [m for m in models if m.conv2d and len(m.input_tensors) > _MOST_SHAPES]
    if varying:
        return fact("shapes-vary", shapes=len(varying[0].input_tensors))
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        program.refuse("no-cudnn")

    def turn_on() -> None:
        if not torch.cuda.is_available():
            program.refuse("no-cuda-gpu-here")
        if torch.are_deterministic_algorithms_enabled():
            program.refuse("wants-deterministic")
        torch.backends.cudnn.benchmark = True
        program.applied()

    program.set_reason("training-did-not-begin")
    program.at_first_batch(turn_on)


FIX = FixSpec(
    name="fastest cuDNN algorithms",
    treats=("cudnn-benchmark-off", "compute"),
    keeps_results="within rounding",
    when="launch",  # cuDNN keeps the first plan for a shape, whatever the switch says later
    p_helps=0.4,
    refuses=refuses,
    sentences={
        "shapes-vary": "Input shapes vary (at least {shapes} seen), and each new one would be "
        "tuned anew.",
        "no-cuda-gpu": "The model is on no CUDA GPU, and cuDNN runs on one alone.",
        "auto-tuner-on": "The cuDNN auto-tuner is already on.",
        "deterministic-algorithms": "The program asks for deterministic algorithms, and the "
        "auto-tuner's choice varies.",
        "no-convolutions": "The model has no convolutions for cuDNN to tune.",
        "no-cudnn": "This torch was built without CUDA, and cuDNN runs on a GPU alone.",
        "no-cuda-gpu-here": "There is no CUDA GPU.",
        "wants-deterministic": "The program asks for deterministic algorithms.",
    },
    touches=lambda recording: convolutions(recording, flat_too=True),
    suits=lambda trace: trace.has_device and convolves(trace),
    platforms=("cuda",),
    apply=apply,
    instruction=lambda settings, recording: f"{_STATEMENT}  # after the imports",
    edits=lambda settings, recording: on_top(recording, _STATEMENT),
    example=Example(
        code="""
model = torch.nn.Conv2d(3, 4, 3)
model(torch.ones(2, 3, 8, 8)).sum().backward()
print("auto-tuner:", torch.backends.cudnn.benchmark)
""",
        needs="cuda",
        without="auto-tuner: False",
        with_fix="auto-tuner: True",
    ),
)
