"""Let float32 matrix products use the GPU's TF32 tensor cores.

## What it does
Allows TF32 for float32 matrix products and convolutions (PyTorch's default: convolutions only).

## Why it helps
From the Ampere generation on, tensor cores multiply numbers in TF32: the 8 exponent bits of
float32 with 10 bits of mantissa, accumulated in float32. On an A100 that is up to 156 TFLOPS
against 19.5 of plain float32. Tensors stay float32.

## Risks
Relative errors near 1e-3 in a matrix product (float32 has 23 bits of mantissa). Training networks
is hardly ever sensitive to it; solvers in the same process may be. 16-bit work gains nothing.

## Make it permanent
    torch.set_float32_matmul_precision("high")      # near the beginning of the script
    torch.backends.cudnn.allow_tf32 = True          # the default

## Sources
- PyTorch, CUDA semantics, TensorFloat-32: https://docs.pytorch.org/docs/stable/notes/cuda.html
"""

from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.calls import on_top
from torchdoctor.queries.hardware import compute_capability
from torchdoctor.queries.lookup import multiplies_float32, training_models
from torchdoctor.queries.touched import precision_ratio, products
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, Touches, fact

_STATEMENT = 'torch.set_float32_matmul_precision("high")'
_CONVOLUTIONS = "torch.backends.cudnn.allow_tf32 = True"
# Where the program sets `fp32_precision`: torch has it since 2.9, and does not mix it with these.
_NEWER_STATEMENT = 'torch.backends.cuda.matmul.fp32_precision = "tf32"'
_NEWER_CONVOLUTIONS = 'torch.backends.cudnn.conv.fp32_precision = "tf32"'
_LEAST_CAPABILITY = (8, 0)  # the first with TF32


def refuses(recording: Recording) -> Evidence | None:
    if not recording.has_gpu:
        return fact("no-cuda-gpu")
    capability = compute_capability(recording)
    if capability is not None and capability < _LEAST_CAPABILITY:
        return fact("no-tensor-cores", capability=list(capability))
    flags = recording.main.flags
    if flags.matmul_tf32 and flags.cudnn_tf32:
        return fact("allowed-already")
    models = training_models(recording)
    if models and not any("float32" in m.dtypes for m in models):
        return fact("no-float32-parameters")
    return None


def touches(recording: Recording) -> Touches:
    ratio = precision_ratio(recording, "tf32")
    return products(recording, "float32 products", "float32 products", ratio)


def apply(torch: Any, settings: Settings, program: Any) -> None:
    if torch.version.cuda is None:
        program.refuse("torch-without-cuda")
    before: list[tuple[Any, str, Any]] = []  # (owner, name of its switch, what it was)

    def allow() -> None:
        capability = program.accelerator.capability() if torch.cuda.is_available() else None
        if capability is None or capability < _LEAST_CAPABILITY:
            program.refuse("no-tf32-here")
        switches = _switches(torch)
        before[:] = [(owner, name, getattr(owner, name)) for owner, name, _ in switches]
        for owner, name, on in switches:
            setattr(owner, name, on)
        program.applied()

    def restore() -> None:
        for owner, name, value in before:
            setattr(owner, name, value)
        before.clear()

    program.set_reason("training-did-not-begin")
    program.at_first_batch(allow, restore)


def _switches(torch: Any) -> list[tuple[Any, str, Any]]:
    """Return owner, name and value of the switches, by the interface that the program uses."""
    matmul = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
    try:
        _ = matmul.allow_tf32, cudnn.allow_tf32
    except RuntimeError:  # both interfaces must not be mixed
        return [(owner, "fp32_precision", "tf32") for owner in (matmul, cudnn.conv, cudnn.rnn)]
    return [(matmul, "allow_tf32", True), (cudnn, "allow_tf32", True)]


def _statements(recording: Recording) -> tuple[str, str]:
    """Return the statement for products, and the one for convolutions."""
    if recording.main.flags.sets_fp32_precision:
        return _NEWER_STATEMENT, _NEWER_CONVOLUTIONS
    return _STATEMENT, _CONVOLUTIONS


def instruction(settings: Settings, recording: Recording) -> str:
    products, convolutions = _statements(recording)
    return f"{products}  # after the imports\n{convolutions}"


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    """Return the switch as a statement, and that of convolutions if the program turned it off."""
    products, convolutions = _statements(recording)
    turned_off = recording.main.flags.cudnn_tf32 is False
    return on_top(recording, *([products, convolutions] if turned_off else [products]))


FIX = FixSpec(
    name="TF32 products",
    treats=("tf32-off", "compute", "low-precision-unused", "tensor-cores-unused"),
    keeps_results="lower precision",
    when="between steps",
    p_helps=0.6,  # only where products are the limit
    least_capability=_LEAST_CAPABILITY,
    refuses=refuses,
    sentences={
        "no-tensor-cores": "The GPU (compute capability {capability:list|.}) has no TF32 tensor "
        "cores: they came with 8.0.",
        "no-cuda-gpu": "The model is on no CUDA GPU, and TF32 is a format of its tensor cores.",
        "allowed-already": "TF32 is already allowed for matrix products and convolutions.",
        "no-float32-parameters": "The model has no float32 parameters, and TF32 serves float32 "
        "alone.",
        "torch-without-cuda": "This torch was built without CUDA, and TF32 is a format of "
        "NVIDIA's GPUs.",
        "no-tf32-here": "There is no GPU with TF32 tensor cores.",
    },
    touches=touches,
    suits=multiplies_float32,
    platforms=("cuda",),
    apply=apply,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
model = torch.nn.Linear(4, 1)
model(torch.ones(2, 4)).sum().backward()
print("allowed:", torch.backends.cuda.matmul.allow_tf32)
""",
        needs="cuda",
        without="allowed: False",
        with_fix="allowed: True",
    ),
)
