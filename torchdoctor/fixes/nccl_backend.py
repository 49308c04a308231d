"""NCCL for what GPUs exchange, in place of gloo or MPI.

## What it does
Makes the process group with the backend "cpu:gloo,cuda:nccl": tensors on GPUs are sent by NCCL,
those on CPUs by gloo as before. If no tensor on a CPU is ever sent, "nccl" alone does the same.

## Why it helps
gloo copies each tensor from the GPU to host memory, sends it, adds on the CPU and copies back. NCCL
sends from one GPU's memory to another's and runs beside the backward pass.

## Risks
NCCL needs a GPU for each process: two processes on one GPU are an error. Sums are made in another
order, so losses differ by rounding. There is no NCCL on Windows.

## Make it permanent
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # a GPU for each process
    dist.init_process_group(backend="cpu:gloo,cuda:nccl")

## Sources
- PyTorch, "Which backend to use?": https://docs.pytorch.org/docs/stable/distributed.html
"""

from torchdoctor.edits.calls import call_edits
from torchdoctor.queries.hardware import backend_by_host
from torchdoctor.queries.lookup import place
from torchdoctor.queries.touched import collectives
from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, fact, process

_BACKEND = {"backend": "cpu:gloo,cuda:nccl"}
_CALLEE = "init_process_group"


def refuses(recording: Recording) -> Evidence | None:
    if backend_by_host(recording) is None:
        return fact("no-gpu-tensors-by-gloo")
    return None


def instruction(settings: Settings, recording: Recording) -> str:
    where = place(recording, recording.main.backend_location, "where the process group is made")
    return (
        f'{where}  {_CALLEE}(backend="{_BACKEND["backend"]}", ...)\n'
        "# before it: torch.cuda.set_device(LOCAL_RANK), so that each process has its own GPU"
    )


_GLOO = {
    "world_size": 2,
    "backend": "gloo",
    "backend_location": {"file": "/w/train.py", "line": 8, "function": "main"},
    "models": [{"ident": 0, "device": "cuda:0", "data_parallel": "DistributedDataParallel"}],
}

FIX = FixSpec(
    name="NCCL backend",
    treats=("backend-not-nccl",),
    keeps_results="within rounding",
    untried="NCCL needs a GPU of its own for each process, which only the script can give it.",
    touches=collectives,
    refuses=refuses,
    sentences={
        "no-gpu-tensors-by-gloo": "No tensors of GPUs are sent between processes by gloo or MPI.",
    },
    platforms=("cuda", "rocm"),
    instruction=instruction,
    edits=lambda settings, recording: call_edits(
        recording, recording.main.backend_location, _CALLEE, _BACKEND
    ),
    offers=[(process(**_GLOO), 'train.py:8  init_process_group(backend="cpu:gloo,cuda:nccl"')],
    refusals=[
        ({}, "no-gpu-tensors-by-gloo"),
        (process(**{**_GLOO, "backend": "nccl"}), "no-gpu-tensors-by-gloo"),
    ],
)
