"""GPUs exchange their gradients through host memory (gloo or MPI).

## What it means
The backend of torch.distributed moves tensors between processes. NCCL sends from one GPU's memory
to another's, and its kernels run beside the backward pass. gloo copies every tensor to host memory,
sends it from there and copies it back: each exchange waits for both copies, and the CPU adds up.

## How it is measured
torchdoctor reads the backend of the process group from torch, or from the trace
(`distributedInfo`), where a model on a CUDA device is wrapped in DistributedDataParallel or FSDP
and the job has several processes. A trace gives the time of host collectives without a kernel.

## Not to be confused with
Exchange that is slow with NCCL (communication-share), and gloo between processes that train on
CPUs, where it is right. A build of MPI that reads GPU memory itself may be as fast: measure it.
"""

from torchdoctor.queries.hardware import backend_by_host
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process, trace


def _examine(recording: Recording) -> Symptoms:
    backend = backend_by_host(recording)
    traced = recording.trace
    if backend is None:
        return
    name = "MPI" if backend == "mpi" else backend
    evidence = [fact("backend", backend=name)]
    share = None
    if traced is not None and traced.host_collective_s is not None and traced.step_s:
        share = min(traced.host_collective_s / traced.step_s, 1.0) or None
        evidence.append(fact("on-host", share=share, seconds=traced.host_collective_s))
    yield Symptom(
        share=share, evidence=evidence, location=recording.main.backend_location, severity="high"
    )


_DDP = {"ident": 0, "data_parallel": "DistributedDataParallel", "device": "cuda:0"}
_ON_GPU = {"world_size": 4, "backend": "gloo", "models": [_DDP]}
_TRACED = {"has_device": True, "backend": "gloo", "world_size": 2, "host_collective_s": 0.04}
CHECK = CheckSpec(
    branch="communication",
    threshold=0,
    unit="such process groups: any is a finding",
    source="PyTorch documentation (torch.distributed): "
    "use the NCCL backend for training with CUDA GPUs",
    sentences={
        "backend": "The model is on a CUDA device and the backend of its process group is "
        "{backend}: gradients are copied to host memory, sent, and copied back. NCCL sends them "
        "from GPU to GPU.",
        "on-host": "Collectives run on the host {seconds:seconds} of {each_step} in which no "
        "kernel does.",
    },
    examine=_examine,
    fires=[
        process(**{**_ON_GPU, "backend": "cpu:gloo,cuda:mpi"}),
        {"processes": [], **trace(**_TRACED)},
    ],
    quiet=[
        process(**{**_ON_GPU, "backend": "cpu:gloo,cuda:nccl"}),
        process(**{**_ON_GPU, "world_size": 1}),
        # A sweep, or gloo for barriers: no gradients are exchanged.
        process(**{**_ON_GPU, "models": [{"ident": 0, "device": "cuda:0"}]}),
        {"processes": [], **trace(**{**_TRACED, "has_device": False})},
    ],
)
