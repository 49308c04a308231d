"""Divide the model among the GPUs: fully sharded data parallel.

## What it does
Nothing at run time. If memory is short and there are several GPUs, the fix gives the lines and the
command.

## Why it helps
DistributedDataParallel keeps the whole model, its gradients and the optimizer's state on every GPU.
FSDP keeps a part of each, and gathers a layer's weights just before it is computed. The memory that
a GPU saves is available for the batch.

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
- PyTorch tutorial, Getting Started with Fully Sharded Data Parallel (FSDP2):
  https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
"""

from __future__ import annotations

import json
from typing import Any

from torchdoctor.facts.analysed import size_words
from torchdoctor.facts.hardware import memory_is_short
from torchdoctor.facts.lookup import training_models
from torchdoctor.facts.scaling import comment_lines, scaling
from torchdoctor.fixes._parts import fewer_than_two_gpus, with_own_command
from torchdoctor.words import FixSpec, Recording, Settings, process

_MOMENTS = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adagrad": 1}  # kept for each weight
_BYTES = {"float64": 8, "bfloat16": 2, "float16": 2}


def refuses(recording: Recording) -> str | None:
    if any(model.data_parallel == "FSDP" for model in recording.main.models):
        return "The model is sharded already."
    if reason := fewer_than_two_gpus(recording):
        return reason
    if not memory_is_short(recording):
        return "The model fits: DistributedDataParallel sends less."
    return None


def instruction(settings: Settings, recording: Recording) -> str:
    """Return what it would save, the lines with the program's own block, and how to start it."""
    main, models = recording.main, training_models(recording)
    count = max(len(main.devices), main.world_size or 1, 2)
    kept, whole = _kept(recording, sum(model.elements for model in models))
    lines = with_own_command(FIX.permanent_form, recording)
    largest = max(models, key=lambda model: model.elements, default=None)
    if largest is not None and largest.repeated_block:
        lines = lines.replace('"Block"', json.dumps(largest.repeated_block))
    divided = f"{size_words(whole / count)} divided by {count}"
    saved = f"# {kept}: {size_words(whole)} on each GPU now, {divided}"
    return "\n".join([saved, *comment_lines(scaling(recording), "shards"), lines])


def _kept(recording: Recording, elements: int) -> tuple[str, float]:
    """Return what each GPU keeps for the weights, in words, and its bytes.

    Of an optimizer whose state is not known (SGD may have a momentum), without it.
    """
    stepped = [optimizer for optimizer in recording.main.optimizers if optimizer.steps]
    kinds = {optimizer.cls.rpartition(".")[2] for optimizer in stepped}
    dtypes = {optimizer.dtype for optimizer in stepped}
    moments = _MOMENTS.get(min(kinds), 0) if len(kinds) == 1 else 0
    each = _BYTES.get(min(dtypes), 4) if len(dtypes) == 1 else 4
    kept = f"weights, gradients and {min(kinds)}'s state" if moments else "weights and gradients"
    return kept, float(each * (2 + moments) * elements)


_GPU = {"gpus": [{"index": 0, "name": "A100", "memory_bytes": 100}]}
_FULL = {"environment": _GPU, "sensors": {"gpu_memory_peak_bytes": 95}}
_MODEL = {"ident": 0, "device": "cuda:0", "forwards": 9, "elements": 2**28}
_LAYERS = {**_MODEL, "repeated_blocks": 12, "repeated_block": "Layer"}


def _pair(**more: Any) -> dict[str, Any]:
    return process(**{"models": [_MODEL], "devices": ["A", "A"], **more})


def _stepped(kind: str, **more: Any) -> dict[str, Any]:
    made = {"ident": 0, "cls": f"torch.optim.{kind}", "steps": 9, **more}
    return {**_FULL, **_pair(optimizers=[made])}


FIX = FixSpec(
    file=__file__,
    treats=("memory-near-limit",),
    keeps_results="changes training",
    when="by hand",
    untried="it needs a process for each GPU, and the script to say how the model is divided.",
    refuses=refuses,
    instruction=instruction,
    offers=[
        ({**_FULL, **_pair()}, "# weights and gradients: 2.0 GiB on each GPU now"),
        (_stepped("adamw.AdamW"), "gradients and AdamW's state: 4.0 GiB on each GPU now, 2.0 GiB"),
        (_stepped("adamw.AdamW", dtype="bfloat16"), "AdamW's state: 2.0 GiB on each GPU now"),
        (_stepped("sgd.SGD"), "# weights and gradients: 2.0 GiB on each GPU now, 1.0 GiB divided"),
        ({**_FULL, **_pair(models=[_LAYERS])}, 'type(module).__name__ == "Layer"]'),
        ({**_FULL, **_pair()}, "# torchrun --standalone --nproc-per-node 2 train.py"),
    ],
    refusals=[(_FULL, "fewer than two"), (_pair(), "fits")],
)
