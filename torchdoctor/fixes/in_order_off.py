"""Hand out batches as they are done, not in the order they were asked for.

## What it does
Sets `in_order=False` of the training DataLoader: whichever worker's batch is done is handed out.

## Why it helps
If samples differ much in cost, the next batch in order may take long while others lie ready.

## Risks
The same batches come in an order that differs from run to run, so training can no longer be
repeated exactly, and cheap samples come first. It needs torch 2.6. With an IterableDataset, the
shares of its workers are mixed otherwise. `prefetch-factor` evens out smaller differences in order.

## Make it permanent
    loader = DataLoader(..., in_order=False)

## Sources
- PyTorch, DataLoader: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
"""

from typing import Any

from torchdoctor.edits.calls import loader_call, loader_edits, loader_location
from torchdoctor.queries.lookup import loader_target, order_wait_share, training_loaders
from torchdoctor.queries.touched import calls
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, Touches, fact


def refuses(recording: Recording) -> Evidence | None:
    loaders = training_loaders(recording)
    if not loaders:
        return fact("no-loader")
    if loaders[0].num_workers < 2:
        return fact("too-few-workers", workers=loaders[0].num_workers)
    if not loaders[0].in_order:
        return fact("out-of-order-already")
    if not loaders[0].overtaken:
        return fact("never-overtaken")
    return None


def touches(recording: Recording) -> Touches:
    share = order_wait_share(recording)
    steps = recording.steps
    if share is None or steps is None:
        return None
    return calls(recording, share * steps.mean_s, "waiting while later batches lie ready")


def apply(torch: Any, settings: Settings, program: Any) -> None:
    def give_up_order(arguments: dict[str, Any]) -> None:
        if "in_order" not in arguments:
            program.refuse("no-in-order")
        if not arguments["num_workers"]:
            program.set_reason("no-worker-processes")
            return
        arguments["in_order"] = False
        program.applied()

    program.before_loader(give_up_order, settings.get("loader"))


FIX = FixSpec(
    name="batches in order of completion",
    treats=("worker-imbalance",),
    keeps_results="changes training",
    p_helps=0.3,
    reorders=True,
    needs_finding=True,  # it costs repeatable training: only where the order is seen to cost time
    needs_free_cpus=True,
    refuses=refuses,
    sentences={
        "too-few-workers": "The loader has {workers} workers: no batch can overtake another.",
        "no-loader": "The loop uses no torch DataLoader, so there is no order to give up.",
        "out-of-order-already": "The loader already hands out batches as they are done.",
        "never-overtaken": "No batch was waited for while a later one lay ready.",
        "no-in-order": "This torch's DataLoader has no in_order argument: it came with 2.6.",
        "no-worker-processes": "The loader has no worker processes.",
    },
    settings=lambda recording: [loader_target(recording)],
    touches=touches,
    suits=lambda trace: False,
    least_torch=(2, 6),
    apply=apply,
    location=loader_location,
    instruction=lambda settings, recording: loader_call(recording, in_order=False),
    edits=lambda settings, recording: loader_edits(recording, in_order=False),
    example=Example(
        code="""
import multiprocessing, time
from torch.utils.data import DataLoader
others = multiprocessing.Semaphore(0)  # how many samples but the first are done
def uneven(samples):
    if samples == [0]:
        others.acquire(timeout=10)  # the first one takes until after another
        time.sleep(1.0)
    else:
        others.release()
    return torch.tensor(samples).float()
if __name__ == "__main__":
    model, order = torch.nn.Linear(1, 1), []
    for x in DataLoader(range(6), num_workers=2, collate_fn=uneven):
        order.append(int(x))
        model(x).sum().backward()
    print("first:", order[0] == 0, "all:", sorted(order))
""",
        without="first: True all: [0, 1, 2, 3, 4, 5]",
        with_fix="first: False all: [0, 1, 2, 3, 4, 5]",
    ),
)
