"""Let the learning rate rise and fall over the training.

## What it does
If the program has no scheduler and its rate stays constant, the fix gives a one-cycle schedule as
code. Parameter groups keep their proportion. No run of torchdoctor tries rates.

## Why it helps
It changes how many steps training needs, not how long a step takes. With a warm-up and a decay the
rate in between can be several times as high, and many models need a fraction of the epochs.

## Risks
The total number of steps must be known beforehand. The rate has a large effect on how well a model
generalises, which no short run shows. A rate that is too high makes the loss diverge. A range test
(Smith, 2015) gives its order of magnitude: a tenth of the rate where the loss stops falling.

## Make it permanent
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, total_steps=total, cycle_momentum=False
    )
    optimizer.step()
    scheduler.step()                               # after each batch

## Sources
- Smith, Cyclical Learning Rates: https://arxiv.org/abs/1506.01186
- Smith and Topin, Super-Convergence: https://arxiv.org/abs/1708.07120
"""

from torchdoctor.queries.lookup import place
from torchdoctor.schema import Evidence, OptimizerFacts, Recording, fact
from torchdoctor.schema.specs import FixSpec, Settings, TrainingAdvice, process


def _stepped(recording: Recording) -> list[OptimizerFacts]:
    return [optimizer for optimizer in recording.main.optimizers if optimizer.steps]


def refuses(recording: Recording) -> Evidence | None:
    optimizers = _stepped(recording)
    if not optimizers or any(
        optimizer.lr is None or optimizer.first_lr is None for optimizer in optimizers
    ):
        return fact("no-learning-rate")
    if recording.main.flags.schedulers:
        return fact("makes-scheduler")
    if any(optimizer.lr != optimizer.first_lr for optimizer in optimizers):
        return fact("changes-rate-itself")
    return None


def instruction(settings: Settings, recording: Recording) -> str:
    lines = []
    stepped = _stepped(recording)
    for optimizer in stepped:
        where = place(recording, optimizer.location, "")
        if len(stepped) > 1 and where:
            lines.append(f"# of the optimizer made at {where}:")
        lines.append(_schedule(optimizer))
    return "\n".join(lines)


def _schedule(optimizer: OptimizerFacts) -> str:
    rate = "..."
    comment = "to be found by a range test"
    groups = ""
    if optimizer.distinct_lrs > 1:
        rate = '[... * group["lr"] for group in optimizer.param_groups]'
        comment += "; the rates of the groups keep their proportion"
        groups = " of the first parameter group"
    return (
        f"# no scheduler, and the rate{groups} stayed at {optimizer.lr:g} over "
        f"{optimizer.steps} steps\n"
        "scheduler = torch.optim.lr_scheduler.OneCycleLR(\n"
        f"    optimizer, max_lr={rate}, total_steps=..., cycle_momentum=False)"
        f"  # max_lr {comment}\n"
        "scheduler.step()  # after each optimizer.step()"
    )


_SGD = {"ident": 0, "cls": "torch.optim.sgd.SGD", "lr": 0.01, "first_lr": 0.01, "steps": 60}

FIX = FixSpec(
    name="learning rate schedule",
    keeps_results="changes training",
    untried="a short run does not show whether a model trains better.",
    refuses=refuses,
    sentences={
        "no-learning-rate": "The learning rate is not known: no torch optimizer stepped.",
        "makes-scheduler": "The program makes a learning-rate scheduler.",
        "changes-rate-itself": "The program changes the learning rate by itself.",
    },
    location=lambda recording: _stepped(recording)[0].location,
    instruction=instruction,
    training=TrainingAdvice(
        costs=(
            "a schedule brings more numbers to choose, and the rate has a large effect on how well "
            "a model generalises, which no short run shows."
        ),
    ),
    offers=[
        (process(optimizers=[_SGD]), "max_lr=..., total_steps"),
        (
            process(optimizers=[{**_SGD, "distinct_lrs": 2}]),
            'max_lr=[... * group["lr"] for group in optimizer.param_groups], total_steps',
        ),
    ],
    refusals=[
        ({}, "no-learning-rate"),
        (process(optimizers=[{**_SGD, "lr": 0.02}]), "changes-rate-itself"),
        (process(optimizers=[_SGD], flags={"schedulers": 1}), "makes-scheduler"),
    ],
)
