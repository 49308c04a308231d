"""One process for each GPU: DistributedDataParallel in place of DataParallel or of one GPU.

## What it does
Where DataParallel is in use, or one of several GPUs trains, it gives the command and the lines.

## Why it helps
DataParallel copies the model to every GPU at every step, gathers all outputs on the first, and
drives all of them from one Python process, which holds one lock. DistributedDataParallel keeps one
process for each GPU and exchanges gradients while the backward pass still runs.

## Risks
Every process loads its own share of the data (DistributedSampler), so one step sees as many batches
as there are GPUs: the learning rate may have to follow. Rank 0 alone should write checkpoints.

## Make it permanent
    # torchrun --standalone --nproc-per-node 8 train.py
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    model = DistributedDataParallel(model.to(device))
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
    # at each epoch: loader.sampler.set_epoch(epoch)
    # at the end: dist.destroy_process_group()

## Sources
- PyTorch, Multi GPU with DDP: https://docs.pytorch.org/tutorials/beginner/ddp_series_multigpu.html
"""

from torchdoctor.fixes._parts import is_replicated, with_own_command
from torchdoctor.queries.scaling import comment_lines, scaling
from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, fact, process

_INSTEAD = """\
# in place of torch.nn.DataParallel(model); it divides each batch among the GPUs,
# so divide the loader's batch_size by their number to train as before"""


def _divides_batches(recording: Recording) -> bool:
    return any(model.data_parallel == "DataParallel" for model in recording.main.models)


def refuses(recording: Recording) -> Evidence | None:
    if is_replicated(recording):
        return fact("distributed-already")
    if _divides_batches(recording) or (recording.has_gpu and len(recording.main.devices) > 1):
        return None
    return fact("fewer-than-two-gpus")


def instruction(settings: Settings, recording: Recording) -> str:
    first = [_INSTEAD] if _divides_batches(recording) else []
    lines = with_own_command(FIX.permanent_form, recording)
    return "\n".join([*first, *comment_lines(scaling(recording), "replicas"), lines])


_WRAPPED = {"ident": 0, "data_parallel": "DataParallel", "device": "cuda:0", "forwards": 9}
_FOUR = process(models=[_WRAPPED], devices=["A"] * 4)

FIX = FixSpec(
    name="DistributedDataParallel",
    treats=("data-parallel", "gpu-left-idle"),
    keeps_results="changes training",
    untried="a process for each GPU divides the data, which only the script can do.",
    no_bound="The other GPUs, and the exchange between them, were not recorded.",
    refuses=refuses,
    sentences={
        "distributed-already": "The program trains with a process for each rank already.",
    },
    suits=lambda trace: not trace.idle_gpus,
    instruction=instruction,
    offers=[
        (_FOUR, "# torchrun --standalone --nproc-per-node 4 train.py"),
        (_FOUR, "divide the loader's batch_size by their number"),
    ],
    refusals=[
        ({}, "fewer-than-two-gpus"),
        (process(models=[{**_WRAPPED, "data_parallel": "FSDP"}]), "distributed-already"),
    ],
)
