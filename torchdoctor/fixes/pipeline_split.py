"""Cut the model into stages, one for each GPU, that work on parts of the batch in turn.

## What it does
Nothing at run time. If memory is short although the model is sharded, it gives lines and command.

## Why it helps
Between stages only activations are sent, far less than the weights that FSDP gathers, so it bears a
slow network. Each GPU holds the weights, gradients and optimizer state of its own layers alone.

## Risks
At the beginning and the end of each step stages wait for each other: with few parts of the batch
(microbatches) for many stages most of the step. Unequal stages wait in every part. Batch
normalization sees a part at a time. Every batch must be divisible into them (drop_last=True).

## Make it permanent
    # torchrun --standalone --nproc-per-node 8 train.py
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # torch 2.6 and later

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank, stages = dist.get_rank(), dist.get_world_size()
    layers = list(model.children())  # of a torch.nn.Sequential: a layer calls the next
    first, end = len(layers) * rank // stages, len(layers) * (rank + 1) // stages
    part = torch.nn.Sequential(*layers[first:end]).to(device)
    stage = PipelineStage(part, rank, stages, device)
    schedule = Schedule1F1B(stage, n_microbatches=4 * stages, loss_fn=loss_function)
    optimizer = torch.optim.AdamW(part.parameters())
    for inputs, targets in loader:  # the same batches on every rank: give the sampler a seed
        optimizer.zero_grad()
        losses = []  # of each microbatch, on the last stage
        if rank == 0:
            schedule.step(inputs.to(device))
        elif rank == stages - 1:
            schedule.step(target=targets.to(device), losses=losses)
        else:
            schedule.step()
        optimizer.step()
    # at the end: dist.destroy_process_group()

## Sources
- PyTorch, Pipeline Parallelism: https://docs.pytorch.org/docs/stable/distributed.pipelining.html
"""

from torchdoctor.fixes._parts import fewer_than_two_gpus, with_own_command
from torchdoctor.queries.hardware import memory_is_short
from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, fact, on_gpu, process


def refuses(recording: Recording) -> Evidence | None:
    if reason := fewer_than_two_gpus(recording):
        return reason
    if not any(model.data_parallel == "FSDP" for model in recording.main.models):
        return fact("sharding-first")
    return None if memory_is_short(recording) else fact("model-fits")


def instruction(settings: Settings, recording: Recording) -> str:
    return with_own_command(FIX.permanent_form, recording)


_FULL = {**on_gpu("A100", memory_bytes=100), "sensors": {"gpu_memory_peak_bytes": 95}}
_MODEL = {"ident": 0, "device": "cuda:0", "forwards": 9}
_WHOLE = process(devices=["A", "A"], models=[_MODEL])
_SHARDED = process(devices=["A", "A"], models=[{**_MODEL, "data_parallel": "FSDP"}])

FIX = FixSpec(
    name="pipeline stages",
    treats=("memory-near-limit",),
    keeps_results="within rounding",
    untried="it needs a process for each GPU, and a model that is a chain of layers.",
    least_torch=(2, 6),
    no_bound="It saves memory, and the exchange that it needs was not recorded.",
    refuses=refuses,
    sentences={
        "sharding-first": "Sharding the model (fsdp) comes first.",
        "model-fits": "The model fits.",
    },
    instruction=instruction,
    offers=[({**_FULL, **_SHARDED}, "# torchrun --standalone --nproc-per-node 2 train.py")],
    refusals=[
        (_FULL, "fewer-than-two-gpus"),
        ({**_FULL, **_WHOLE}, "sharding-first"),
        (_SHARDED, "model-fits"),
    ],
)
