"""Keep the program on one memory node of the machine.

## What it does
Binds the process to the CPUs of one NUMA node when torch is imported, with as many threads as that
node has cores. Ranks are spread over the nodes by their local rank; loader workers follow them.

## Why it helps
Another node's memory is about half as fast. Linux gives a page to the node of the thread that
writes it first, and moves threads about afterwards, so that an unbound program reads from afar.

## Risks
Sums are split among fewer threads, so they round differently.

## Make it permanent
    numactl --cpunodebind=0 --membind=0 python train.py
    torchrun --numa-binding=node ... train.py      # torch 2.8 and later, several ranks

## Sources
- PyTorch Tuning Guide, NUMA: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

import os
from typing import Any

from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, fact

_NODES = "/sys/devices/system/node"


def refuses(recording: Recording) -> Evidence | None:
    nodes = recording.environment.numa_nodes
    if nodes is None:
        return fact("memory-nodes-unknown")
    if nodes < 2:
        return fact("one-memory-node")
    if recording.has_gpu and (recording.shares.cpu or 0.0) < 0.05:
        return fact("model-on-gpu")
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    numbers = [name.removeprefix("node") for name in os.listdir(_NODES)]
    nodes = sorted(int(number) for number in numbers if number.isdigit())
    rank = os.environ.get("LOCAL_RANK", "")
    node = nodes[(settings["node"] + (int(rank) if rank.isdigit() else 0)) % len(nodes)]
    with open(f"{_NODES}/node{node}/cpulist", encoding="utf-8") as file:
        ranges = [part.split("-") for part in file.read().strip().split(",") if part]  # "0-3,8"
    of_node = {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}
    cpus = of_node & os.sched_getaffinity(0)
    if not cpus:
        program.refuse("no-cpu-of-node", node=node)
    os.sched_setaffinity(0, cpus)
    torch.set_num_threads(min(torch.get_num_threads(), len(cpus)))
    program.applied(node=node, cpus=len(cpus))


def instruction(settings: Settings, recording: Recording) -> str:
    node = settings["node"]
    command = " ".join(recording.workload.command)
    return f"numactl --cpunodebind={node} --membind={node} {command}"


FIX = FixSpec(
    name="one memory node",
    treats=("cpu-execution", "compute"),
    keeps_results="within rounding",
    p_helps=0.3,
    refuses=refuses,
    sentences={
        "memory-nodes-unknown": "How many memory nodes the machine has is not known.",
        "one-memory-node": "The machine has one memory node.",
        "model-on-gpu": "The model is on a GPU, and the host's operators hardly matter.",
        "no-cpu-of-node": "The program may use no CPU of node {node}.",
    },
    touches=lambda recording: None if (recording.environment.numa_nodes or 1) > 1 else [],
    settings=lambda recording: [{"node": 0}],
    suits=lambda trace: not trace.has_device,
    apply=apply,
    instruction=instruction,
    example=Example(
        code="""
import os
torch.ones(1, requires_grad=True).sum().backward()
with open("/sys/devices/system/node/node0/cpulist") as file:
    parts = [part.split("-") for part in file.read().strip().split(",")]
of_node = {c for part in parts for c in range(int(part[0]), int(part[-1]) + 1)}
print("on node 0:", os.sched_getaffinity(0) <= of_node)
""",
        settings={"node": 0},
        without="on node 0: True",
        with_fix="on node 0: True",
    ),
)
