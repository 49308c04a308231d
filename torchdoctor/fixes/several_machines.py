"""Start the same training on several machines.

## What it does
Where every GPU of the machine trains already, it gives the commands that start the program on
several machines. Nothing is predicted: only a run on them shows what they give.

## Why it helps
A script that trains with a process for each GPU (DistributedDataParallel, FSDP) needs no other line
for more machines: torchrun tells each process its rank among all.

## Risks
Gradients go through the network in every step: what it gives depends on that network alone. Every
machine needs the script, the data and the same versions of everything. One step sees as many
batches as there are GPUs: the learning rate may have to follow.

## Make it permanent
    # two machines of 8 GPUs: the same on each, HOST being the first
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-id train \\
        --rdzv-backend c10d --rdzv-endpoint HOST:29500 train.py

    # Slurm: the file job.sh, then sbatch job.sh
    #!/bin/bash
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=1
    #SBATCH --gpus-per-node=8
    #SBATCH --cpus-per-task=64
    host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \\
        --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 8 \\
        --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d \\
        --rdzv-endpoint "$host:29500" train.py

## Sources
- PyTorch, torchrun (c10d rendezvous): https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from torchdoctor.fixes._parts import is_replicated
from torchdoctor.queries.torchrun_commands import HOST, program, several_machines, slurm_script
from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, fact, process


def refuses(recording: Recording) -> Evidence | None:
    if not recording.has_gpu:
        return fact("fewer-than-two-gpus")
    if not is_replicated(recording):
        return fact("no-process-for-each-gpu")
    if (recording.main.world_size or 1) < len(recording.main.devices):
        return fact("gpus-left-idle")
    return None


def instruction(settings: Settings, recording: Recording) -> str:
    own_program = program(recording)
    lines = [
        f"# two machines: the same on each, {HOST} being the first",
        several_machines(own_program),
    ]
    lines += ["", "# Slurm: the file job.sh, then sbatch job.sh", slurm_script(own_program)]
    return "\n".join(lines)


_ALONE = {"ident": 0, "device": "cuda:0", "forwards": 9}
_WRAPPED = {**_ALONE, "data_parallel": "DistributedDataParallel"}
_FOUR = {"models": [_WRAPPED], "devices": ["A"] * 4}
_RUNS = process(**_FOUR, world_size=4)

FIX = FixSpec(
    name="several machines",
    also_known_as=("multi-node",),
    treats=("compute",),
    keeps_results="changes training",
    untried="it needs the other machines.",
    no_bound="The other machines, and the network between them, were not recorded.",
    refuses=refuses,
    sentences={
        "no-process-for-each-gpu": "The program does not train with a process for each GPU.",
        "gpus-left-idle": "GPUs of this machine are left idle: these come first.",
    },
    suits=lambda trace: False,
    instruction=instruction,
    offers=[
        (_RUNS, "torchrun --nnodes 2 --nproc-per-node 4 --rdzv-id train"),
        (_RUNS, "#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=8\n"),
    ],
    refusals=[
        ({}, "fewer-than-two-gpus"),
        (process(models=[_ALONE], devices=["A"]), "no-process-for-each-gpu"),
        (process(**_FOUR, world_size=2), "gpus-left-idle"),
    ],
)
