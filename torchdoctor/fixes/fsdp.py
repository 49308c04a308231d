"""Divide the model among the GPUs, and go on to several machines.

What it does
------------
Nothing at run time. Where memory is short and there are several GPUs, it gives the lines and the
commands: fully sharded data parallel on one machine, torchrun on several, and a Slurm job.

Why it helps
------------
DistributedDataParallel keeps the whole model, its gradients and the optimizer's state on every GPU.
FSDP keeps a part of each on each GPU and gathers a layer's weights just before it is computed. What
a GPU saves is available for the batch.

Risks
-----
Weights are sent once more in the forward and the backward pass: on a slow network it is slower than
DistributedDataParallel. Checkpoints need torch.distributed.checkpoint. A model too large for its
machine's GPUs may need a pipeline (torch.distributed.pipelining) as well.

Make it permanent
-----------------
    from torch.distributed.fsdp import fully_shard     # torch 2.6 and later

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)

    # one machine
    torchrun --standalone --nproc-per-node 8 train.py
    # two machines: the same line on both, HOST being the first one's name
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 train.py
    # Slurm
    srun --nodes 2 --ntasks-per-node 1 --gpus-per-node 8 torchrun --nnodes 2 --nproc-per-node 8 \
        --rdzv-backend c10d --rdzv-endpoint "$(scontrol show hostnames | head -1):29500" train.py

Sources
-------
- PyTorch tutorial, Getting Started with Fully Sharded Data Parallel (FSDP2):
  https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
- PyTorch documentation, torchrun:
  https://docs.pytorch.org/docs/stable/elastic/run.html
- PyTorch documentation, Pipeline Parallelism:
  https://docs.pytorch.org/docs/stable/distributed.pipelining.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.records import Recording

TREATS = ("memory-near-limit",)
KEEPS_RESULTS = "changes training"
WHEN = "by hand"
UNTRIED = "it needs a process for each GPU, and the script to say how the model is divided."

_STATE = 4  # weights, gradients and two moments of Adam


def refuses(recording: Recording) -> str | None:
    """Why it is not offered."""
    from torchdoctor.records.hardware import memory_is_short

    main = recording.main
    if any(model.data_parallel == "FSDP" for model in main.models):
        return "The model is sharded already."
    if not recording.has_gpu or max(len(main.devices), main.world_size or 1) < 2:
        return "The program sees fewer than two GPUs."
    if not memory_is_short(recording):
        return "The model fits: DistributedDataParallel sends less."
    return None


def settings(recording: Recording) -> list[dict[str, Any]]:
    """It has no values to choose from."""
    return [{}]


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """What it would save, and how to start it."""
    from torchdoctor.records.analysed import size_words
    from torchdoctor.records.lookup import training_models

    main = recording.main
    count = max(len(main.devices), main.world_size or 1, 2)
    elements = sum(model.elements for model in training_models(recording))
    whole = 4.0 * _STATE * elements
    return (
        f"# weights, gradients and Adam's state: {size_words(whole)} on each GPU now, "
        f"{size_words(whole / count)} divided by {count}\n"
        "from torch.distributed.fsdp import fully_shard  # each block, then the model\n"
        f"torchrun --standalone --nproc-per-node {count} ...  # see torchdoctor explain fsdp"
    )


_FULL = {
    "environment": {"gpus": [{"index": 0, "name": "A100", "memory_bytes": 100}]},
    "sensors": {"gpu_memory_peak_bytes": 95},
}
_MODEL = {"ident": 0, "device": "cuda:0", "forwards": 9, "elements": 2**28}
_PAIR = [{"pid": 1, "models": [_MODEL], "devices": ["A", "A"]}]
OFFERS: list[tuple[dict[str, Any], str]] = [({**_FULL, "processes": _PAIR}, "2.0 GiB divided by 2")]
REFUSES: list[tuple[dict[str, Any], str]] = [
    (_FULL, "fewer than two"),
    ({"processes": _PAIR}, "fits"),
]
