"""Divide the model among the GPUs: fully sharded data parallel.

## What it does
Nothing at run time. If memory is short on several GPUs, it gives the lines and the command.

## Why it helps
DistributedDataParallel keeps the whole model, its gradients and the optimizer's state on every GPU.
FSDP keeps a part of each, and gathers a layer's weights just before it is computed.

## Risks
Weights are sent once more in each pass: on a slow network DistributedDataParallel is faster. One
step sees as many batches as there are GPUs, so the learning rate may have to follow. Checkpoints
need torch.distributed.checkpoint. Make the optimizer afterwards, of the sharded parameters.

## Make it permanent
    # torchrun --standalone --nproc-per-node 8 train.py
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed import fsdp
    from torch.utils.data import DataLoader, DistributedSampler

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    model.to(device)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.data, 0)  # each process has made its own
    blocks = [module for module in model.modules() if type(module).__name__ == "Block"]
    for module in [*blocks, model]:
        fsdp.fully_shard(module)  # torch 2.6 and later
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
    # then make the optimizer, of model.parameters()
    # at each epoch: loader.sampler.set_epoch(epoch)
    # at the end: dist.destroy_process_group()

## Sources
- PyTorch, FSDP2 tutorial: https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
"""

import json
from typing import Any

from torchdoctor.fixes._parts import fewer_than_two_gpus, with_own_command
from torchdoctor.queries.hardware import memory_is_short
from torchdoctor.queries.lookup import training_models
from torchdoctor.queries.scaling import comment_lines, scaling
from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, fact, on_gpu, process


def refuses(recording: Recording) -> Evidence | None:
    if any(model.data_parallel == "FSDP" for model in recording.main.models):
        return fact("sharded-already")
    if reason := fewer_than_two_gpus(recording):
        return reason
    if not memory_is_short(recording):
        return fact("model-fits")
    return None


def instruction(settings: Settings, recording: Recording) -> str:
    main = recording.main
    count = max(len(main.devices), main.world_size or 1, 2)
    lines = with_own_command(FIX.permanent_form, recording)
    models = training_models(recording)
    largest = max(models, key=lambda model: model.elements, default=None)
    if largest is not None and largest.repeated_block:
        lines = lines.replace('"Block"', json.dumps(largest.repeated_block))
    divided = f"# weights, gradients and the optimizer's state, divided by {count}"
    return "\n".join([divided, *comment_lines(scaling(recording), "shards"), lines])


_FULL = {**on_gpu("A100", memory_bytes=100), "sensors": {"gpu_memory_peak_bytes": 95}}
_MODEL = {"ident": 0, "device": "cuda:0", "forwards": 9}


def _pair(**more: Any) -> dict[str, Any]:
    return process(models=[{**_MODEL, **more}], devices=["A", "A"])


FIX = FixSpec(
    name="fully sharded data parallel",
    treats=("memory-near-limit",),
    keeps_results="changes training",
    untried="it needs a process for each GPU, and the script to say how the model is divided.",
    least_torch=(2, 6),
    no_bound="It saves memory, and the exchange that it needs was not recorded.",
    refuses=refuses,
    sentences={
        "sharded-already": "The model is sharded already.",
        "model-fits": "The model fits: DistributedDataParallel sends less.",
    },
    instruction=instruction,
    offers=[
        ({**_FULL, **_pair()}, "# weights, gradients and the optimizer's state, divided by 2"),
        ({**_FULL, **_pair(repeated_block="Layer")}, 'type(module).__name__ == "Layer"]'),
        ({**_FULL, **_pair()}, "# torchrun --standalone --nproc-per-node 2 train.py"),
    ],
    refusals=[(_FULL, "fewer-than-two-gpus"), (_pair(), "model-fits")],
)
