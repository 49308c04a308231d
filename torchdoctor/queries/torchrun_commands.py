"""Write the commands that start a program with a process for each GPU, on one machine or several.

The pages of the fixes show what these give for `EXAMPLE`, and tests run what they give.
"""

import re
import shlex
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from torchdoctor.schema import Recording

HOST = "HOST"  # stands for the name of the first machine
_PORT = 29500
_LAUNCHERS = ("torch", "accelerate", "deepspeed")  # packages: their modules start a program


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program for torchrun, and the GPUs and CPUs that each machine has for it."""

    words: tuple[str, ...]  # after torchrun's own options
    gpus: int  # processes on each machine
    cpus: int = 1  # of each machine

    @property
    def line(self) -> str:
        """The words as a shell takes them."""
        return shlex.join(self.words)


EXAMPLE = Program(words=("train.py",), gpus=8, cpus=64)


def program(recording: Recording) -> Program:
    """Return the observed program with the GPUs and CPUs of its machine."""
    main = recording.main
    gpus = len(main.devices) or len(recording.environment.gpus) or main.world_size or 1
    cpus = recording.environment.whole_cpus
    return Program(words=tuple(_words(recording)), gpus=gpus, cpus=cpus)


def _words(recording: Recording) -> list[str]:
    """Return the script (or -m and the module) with its arguments, without what started it."""
    command = recording.workload.command
    argv = recording.main.argv
    if not command or "python" not in Path(command[0]).name:
        return list(argv or command)
    options = [command[0], *takewhile(lambda word: word.startswith("-"), command[1:])]
    words = command[len(options) :]
    package = words[0].partition(".")[0] if words else "torch"
    # -m, or as the last of several flags: -um
    if re.fullmatch("-[A-Za-z]*m", options[-1]) and package not in _LAUNCHERS:
        return ["-m", *words]
    return list(argv or words)


def one_machine(of: Program) -> str:
    """Return the command for all GPUs of one machine."""
    return f"torchrun --standalone --nproc-per-node {of.gpus} {of.line}"


def several_machines(of: Program, machines: int = 2) -> str:
    """Return the command for each of several machines; HOST stands for the first one's name."""
    return (
        f"torchrun --nnodes {machines} --nproc-per-node {of.gpus} --rdzv-id train \\\n"
        f"    --rdzv-backend c10d --rdzv-endpoint {HOST}:{_PORT} {of.line}"
    )


def slurm_script(of: Program, machines: int = 2) -> str:
    """Return a complete batch script for `sbatch`."""
    # A task has one CPU unless it asks for more; since Slurm 22.05 srun has to ask by itself.
    return (
        "#!/bin/bash\n"
        f"#SBATCH --nodes={machines}\n"
        "#SBATCH --ntasks-per-node=1\n"
        f"#SBATCH --gpus-per-node={of.gpus}\n"
        f"#SBATCH --cpus-per-task={of.cpus}\n"
        'host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \\\n'
        f'    --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node {of.gpus} \\\n'
        '    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d \\\n'
        f'    --rdzv-endpoint "$host:{_PORT}" {of.line}'
    )
