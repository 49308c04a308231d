"""What pages give as code is run as it stands there: two processes, on the CPU."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_programs import (
    AFTER,
    AT_THE_END,
    BEFORE,
    alone,
    at_free_port,
    executable,
    losses,
    permanent,
    shell,
    torchrun_on_path,
    two_ranks,
)
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.queries.torchrun_commands import (
    EXAMPLE,
    HOST,
    one_machine,
    program,
    several_machines,
    slurm_script,
)

_RESNET = "train.py -m resnet"
_GPUS = {"environment": {"gpus": [{"index": 0, "name": "A100", "memory_bytes": 100}]}}
_FULL = {**_GPUS, "sensors": {"gpu_memory_peak_bytes": 95}}
_PARALLEL = {"data_parallel": "DataParallel"}
_MODEL = {"ident": 0, "device": "cuda:0", "forwards": 9, "repeated_block": "Block"}


def instruction(fix: str, over: dict[str, Any], gpus: int = 2, **model: Any) -> str:
    """What a fix says to a program on a machine of so many GPUs, if its torch has it."""
    own = {
        "pid": 1,
        "torch": str(torch.__version__),
        "argv": ["train.py"],
        "models": [{**_MODEL, **model}],
        "devices": ["A"] * gpus,
        "world_size": gpus,
    }
    spec, seen = catalogue.fixes()[fix], recording({**over, "processes": [own]})
    if lack := spec.lack(seen):
        pytest.skip(lack)
    return str(spec.instruction({}, seen))


def started_by(lines: str) -> str:
    """The command that the comment above the lines of a script names."""
    return lines[lines.index("torchrun") :].splitlines()[0]


def started_like_ddp(lines: str, folder: Path) -> str:
    """What the program prints where its command is the one that a test below gives to a shell."""
    assert started_by(lines) == started_by(instruction("ddp", {}, **_PARALLEL))
    return two_ranks(folder)


@pytest.fixture(scope="module")
def of_one_process(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the same training in one process."""
    return alone(tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("python train.py -m resnet", "train.py -m resnet"),
        ("python -u train.py -m resnet", "train.py -m resnet"),
        ("python -m pkg.train --lr 1", "-m pkg.train --lr 1"),
        ("python -um pkg.train", "-m pkg.train"),
        ("torchrun --nproc-per-node 2 train.py -m resnet", "train.py -m resnet"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py -m resnet", _RESNET),
        ("python -m accelerate.commands.launch --num_processes 2 train.py -m resnet", _RESNET),
        ("bash -c 'python train.py -m resnet'", "train.py -m resnet"),
        ("uv run train.py -m resnet", "train.py -m resnet"),
    ],
)
def test_the_line_keeps_the_script_and_leaves_out_what_started_it(command: str, line: str) -> None:
    seen = recording(
        {
            "workload": {"command": shlex.split(command), "cwd": "/w", "script": None},
            "processes": [{"pid": 1, "argv": ["train.py", "-m", "resnet"], "devices": ["A"]}],
        }
    )
    assert program(seen).line == line


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
def test_the_lines_for_one_process_a_gpu_train_as_one_process_does(
    tmp_path: Path, of_one_process: list[float]
) -> None:
    lines = instruction("ddp", {}, **_PARALLEL)
    (tmp_path / "train.py").write_text(BEFORE + lines + AFTER)
    printed = shell(started_by(lines), tmp_path, torchrun_on_path(tmp_path))
    assert losses(printed) == pytest.approx(of_one_process, rel=1e-4)


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
def test_the_lines_that_shard_a_model_train_as_one_process_does(
    tmp_path: Path, of_one_process: list[float]
) -> None:
    lines = instruction("fsdp", _FULL)
    told = """
from torchdoctor.probe.measure.model_facts import describe
print('sharded', type(model).__name__, type(blocks[0]).__name__, flush=True)
print('seen as', describe(model)['data_parallel'], flush=True)
"""
    (tmp_path / "train.py").write_text(BEFORE + lines + told + AFTER)
    printed = started_like_ddp(lines, tmp_path)
    # Not merely wrapped in nothing: the model, and each block by itself, are divided.
    assert "sharded FSDPSequential FSDPBlock" in printed
    assert "seen as FSDP" in printed
    assert losses(printed) == pytest.approx(of_one_process, rel=1e-4)


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
def test_the_lines_that_split_a_model_train_as_one_process_does(
    tmp_path: Path, of_one_process: list[float]
) -> None:
    lines = instruction("pipeline-split", _FULL, data_parallel="FSDP")
    given = """
def loss_function(output, target):
    return (output - target).square().mean()

loader = [(torch.stack(dataset), torch.ones(64, 1))] * 4
"""
    # The same optimizer as the program alone, and the last stage says what it lost.
    lines = lines.replace(
        "torch.optim.AdamW(part.parameters())", "torch.optim.SGD(part.parameters(), lr=0.1)"
    )
    printing = (
        "    if losses:\n        print('loss', torch.stack(losses).mean().item(), flush=True)\n"
    )
    (tmp_path / "train.py").write_text(BEFORE + given + lines + "\n" + printing + AT_THE_END)
    printed = started_like_ddp(lines, tmp_path)
    assert losses(printed) == pytest.approx(of_one_process, rel=1e-4)


def test_the_command_for_two_machines_is_what_the_slurm_script_starts() -> None:
    """So the test of the script below, which runs it on two nodes, is one of the command too."""
    by_slurm = {'"$SLURM_JOB_NUM_NODES"': "2", '"$SLURM_JOB_ID"': "train", '"$host:': f'"{HOST}:'}
    script = slurm_script(EXAMPLE)
    for name, value in by_slurm.items():
        script = script.replace(name, value)
    commands = script[script.index("torchrun") :], several_machines(EXAMPLE)
    started, given = (shlex.split(command.replace("\\\n", "")) for command in commands)
    assert started == given


# What Slurm does with the script, and no more: the batch runs on the first node with the job's
# variables; srun starts its command once for each node; scontrol lists the nodes' names.
_SBATCH = """#!/bin/bash
script=$1
nodes=$(sed -n 's/^#SBATCH --nodes=//p' "$script")
export SLURM_JOB_ID=4711 SLURM_JOB_NUM_NODES=$nodes SLURM_JOB_NODELIST='node[1-2]'
export SLURM_CPUS_PER_TASK=$(sed -n 's/^#SBATCH --cpus-per-task=//p' "$script")
exec bash "$script"
"""
_SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do echo "srun option $1"; shift; done
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
    SLURM_NODEID=$node SLURM_PROCID=$node "$@" & pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
exit ${failed:-0}
"""
_SCONTROL = """#!/bin/bash
[ "$*" = 'show hostnames node[1-2]' ] || exit 1
printf 'localhost\\nnode2\\n'
"""


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
def test_the_slurm_script_trains_on_every_node(tmp_path: Path, of_one_process: list[float]) -> None:
    (tmp_path / "train.py").write_text(BEFORE + permanent("ddp") + AFTER)
    said = instruction("several-machines", {}, gpus=1, data_parallel="DistributedDataParallel")
    script = said[said.index("#!/bin/bash") :]
    (tmp_path / "job.sh").write_text(at_free_port(script))
    environment = torchrun_on_path(tmp_path)
    for name, text in (("sbatch", _SBATCH), ("srun", _SRUN), ("scontrol", _SCONTROL)):
        executable(tmp_path / "bin" / name, text)
    printed = shell("sbatch job.sh", tmp_path, environment)
    assert "srun option --cpus-per-task=8" in printed
    assert losses(printed) == pytest.approx(of_one_process, rel=1e-4)


def test_the_slurm_script_is_valid_bash() -> None:
    checked = subprocess.run(
        ["bash", "-n"], input=slurm_script(EXAMPLE), capture_output=True, text=True
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("fix", "command"),
    [
        ("ddp", one_machine(EXAMPLE)),
        ("fsdp", one_machine(EXAMPLE)),
        ("pipeline-split", one_machine(EXAMPLE)),
        ("several-machines", several_machines(EXAMPLE)),
        ("several-machines", slurm_script(EXAMPLE)),
    ],
)
def test_a_page_shows_the_commands_that_are_run_here(fix: str, command: str) -> None:
    assert command in permanent(fix)


def test_the_class_that_prefetches_is_python() -> None:
    compile(permanent("device-prefetch"), "page", "exec")
