"""Exchange gradients once an update, not in each of the batches that it accumulates.

## What it does
Where DistributedDataParallel accumulates the gradients of several batches before the optimizer
steps, leaves the exchange out in all but the last of them.

## Why it helps
Every backward pass sends all gradients to the other ranks. What is accumulated can be sent once:
the mean of the sums is the sum of the means.

## Risks
Gradients are added in another order, which rounds differently. If the number of batches in an
update varies, the last one must exchange all the same.

## Make it permanent
    import contextlib

    for number, (x, y) in enumerate(loader):
        last = (number + 1) % batches == 0
        with contextlib.nullcontext() if last else model.no_sync():
            (criterion(model(x), y) / batches).backward()   # the forward pass too, within it
        if last:
            optimizer.step()
            optimizer.zero_grad()

## Sources
- PyTorch, DistributedDataParallel.no_sync:
  https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from typing import Any

from torchdoctor.queries.lookup import place
from torchdoctor.queries.ranks import ACCUMULATED, batches_of_update
from torchdoctor.queries.touched import collectives
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    Location,
    Recording,
    Settings,
    fact,
    process,
)


def refuses(recording: Recording) -> Evidence | None:
    batches = batches_of_update(recording)
    if batches is None:
        return fact("no-distributed-data-parallel")
    if batches < ACCUMULATED:
        return fact("gradients-used-at-once")
    return None


def location(recording: Recording) -> Location | None:
    return recording.main.flags.backward_location


def instruction(settings: Settings, recording: Recording) -> str:
    where = place(recording, location(recording), "the backward pass")
    return (
        f"{where}  # the forward and the backward pass, within it:\n"
        "with contextlib.nullcontext() if last_of_the_update else model.no_sync():"
    )


def apply(torch: Any, settings: Settings, program: Any) -> None:
    kind = torch.nn.parallel.DistributedDataParallel
    # The batches of an update are those of the first one that was seen as a whole.
    state = {"begun": not program.switched, "batches": 0, "passes": 0, "exchanged": True}

    def before_forward(module: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(module, kind) and state["batches"]:
            if not module.require_backward_grad_sync and state["exchanged"]:
                program.refuse("leaves-exchanges-out")
            state["exchanged"] = state["passes"] >= state["batches"] - 1
            module.require_backward_grad_sync = state["exchanged"]
            if not state["exchanged"]:
                program.applied()
        return args, kwargs

    def before_backward() -> None:
        state["passes"] += 1

    def before_step() -> None:
        if not state["exchanged"]:
            program.refuse("update-after-fewer-batches")
        if state["begun"] and not state["batches"]:
            state["batches"] = state["passes"]
        state["begun"], state["passes"] = True, 0

    def exchange_again(module: Any) -> None:
        if isinstance(module, kind):
            module.require_backward_grad_sync = True
        state.update(begun=False, batches=0, passes=0, exchanged=True)

    program.set_reason("no-whole-update")
    program.at("arguments", before_forward)
    program.at("backward", before_backward)
    program.at("step", before_step)
    program.on_model(lambda module: None, exchange_again)


_MODEL = {"ident": 0, "cls": "Net", "data_parallel": "DistributedDataParallel"}
_TRAINS: dict[str, Any] = process(models=[_MODEL])
_ACCUMULATES = {"steps": {"backwards_per_step": 1.0, "optimizer_steps_per_step": 0.125}}

FIX: FixSpec = FixSpec(
    name="one exchange an update",
    treats=("accumulated-exchange", "communication-share"),
    keeps_results="within rounding",
    when="between steps",
    touches=collectives,
    p_helps=0.8,
    needs_finding=True,
    refuses=refuses,
    sentences={
        "no-distributed-data-parallel": "No DistributedDataParallel exchanges gradients.",
        "gradients-used-at-once": "The gradients of each backward pass are used at once: they have "
        "to be exchanged.",
        "leaves-exchanges-out": "The program leaves exchanges out itself.",
        "update-after-fewer-batches": "An update came after fewer batches than those before it.",
        "no-whole-update": "No whole update of a DistributedDataParallel was seen.",
    },
    suits=lambda trace: False,
    apply=apply,
    location=location,
    instruction=instruction,
    offers=[({**_TRAINS, **_ACCUMULATES}, "model.no_sync()")],
    refusals=[
        (process(), "no-distributed-data-parallel"),
        ({**_TRAINS, "steps": {"backwards_per_step": 1.0}}, "gradients-used-at-once"),
    ],
    example=Example(
        code="""
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer, exchanged = torch.optim.SGD(model.parameters(), lr=0.1), []
def exchange(state, bucket):
    exchanged.append(1)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
model.register_comm_hook(None, exchange)
for number in range(12):
    model(torch.ones(1, 2)).sum().backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
print("exchanges:", len(exchanged), "bias: %.3f" % model.module.bias.item())
dist.destroy_process_group()
""",
        without="exchanges: 12 bias: -1.782",
        with_fix="exchanges: 6 bias: -1.782",
    ),
)
