"""Let the learning rate rise and fall over the training.

## What it does
If the program has no scheduler and its rate stays constant, the fix gives a one-cycle schedule. A
range test in launches of its own finds the highest rate: the rates rise step by step, from a
hundredth of the program's own to ten thousand times it. The report says where the loss falls
fastest, where it stops falling and where it diverges. Parameter groups keep their proportion. With
several optimizers no test is made, because one loss does not show which rate is too high.

## Why it helps
It changes how many steps training needs, not how long a step takes. With a warm-up and a decay the
rate in between can be several times as high, and many models need a fraction of the epochs.

## Risks
The total number of steps must be known beforehand. The rate has a large effect on how well a model
generalises, which no short run shows. A rate that is too high makes the loss diverge. A range test
gives the order of magnitude only: a tenth of the rate at which the loss stopped falling is usual.

## Make it permanent
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, total_steps=total, cycle_momentum=False
    )
    optimizer.step()
    scheduler.step()                               # after each batch

## Sources
- Smith and Topin, Super-Convergence: https://arxiv.org/abs/1708.07120
"""

from typing import Any

from torchdoctor.facts.lookup import place
from torchdoctor.words import OptimizerFacts, Recording
from torchdoctor.words.specs import Example, FixSpec, Settings, TrainingAdvice, process

_SEVERAL = (
    "Several optimizers train: the losses do not show which of them a rate is too high for. "
    "A range test needs one that steps alone."
)
_LOWEST, _HIGHEST = 0.01, 1e4  # times the program's own rate


def _stepped(recording: Recording) -> list[OptimizerFacts]:
    return [x for x in recording.main.optimizers if x.steps]


def refuses(recording: Recording) -> str | None:
    optimizers = _stepped(recording)
    if not optimizers or any(x.lr is None or x.first_lr is None for x in optimizers):
        return "The learning rate is not known: no torch optimizer stepped."
    if recording.main.flags.schedulers:
        return "The program makes a learning-rate scheduler."
    if any(x.lr != x.first_lr for x in optimizers):
        return "The program changes the learning rate by itself."
    return None


def untriable(recording: Recording) -> str | None:
    if len(_stepped(recording)) > 1:
        return _SEVERAL
    if any(x.cls.endswith("LBFGS") for x in _stepped(recording)):
        return "LBFGS makes many passes in a step: its loss does not follow the rate."
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    """Raise the rates of the optimizer's groups from step to step, within each step alone.

    `details`: own_rate, and how many steps were done at each backward (`updates`).
    """
    steps = int(settings["steps"])
    lowest, highest = settings["lowest_factor"], settings["highest_factor"]
    tested: list[Any] = []  # the optimizer
    first: list[float] = []  # the rates of its groups before the test
    own: list[Any] = []  # those of the step that runs now
    updates: list[int] = []
    done = 0  # steps

    def raise_rates(optimizer: Any) -> None:
        groups = optimizer.param_groups
        if type(optimizer).__name__ == "LBFGS" or "lr" not in groups[0]:
            program.refuse("The optimizer's loss does not follow one learning rate.")
        if not tested:
            tested.append(optimizer)
            first[:] = [float(group.get("initial_lr", group["lr"])) for group in groups]
            if min(first) <= 0:
                program.refuse("The learning rate is 0.")
            program.applied(own_rate=first[0], updates=updates)
        if tested[0] is not optimizer:
            program.refuse(_SEVERAL)
        factor = lowest * (highest / lowest) ** (min(done, steps - 1) / max(steps - 1, 1))
        own[:] = [group["lr"] for group in groups]
        for group, rate in zip(groups, first, strict=False):  # groups may be added later
            group["lr"] = group["lr"] * 0 + rate * factor  # a tensor stays one

    def give_back(optimizer: Any) -> None:
        nonlocal done
        for group, rate in zip(optimizer.param_groups, own, strict=False):
            group["lr"] = rate
        done += bool(own)
        own.clear()

    program.set_reason("No torch optimizer stepped.")
    program.at("backward", lambda: updates.append(done))
    program.around_step(raise_rates, give_back)


def instruction(settings: Settings, recording: Recording) -> str:
    lines = []
    for optimizer in (stepped := _stepped(recording)):
        several = len(stepped) > 1
        if several and (where := place(recording, optimizer.location, "")):
            lines.append(f"# of the optimizer made at {where}:")
        lines.append(_schedule(optimizer, None if several else settings.get("max_lr")))
    return "\n".join(lines)


def _schedule(optimizer: OptimizerFacts, max_rate: float | None) -> str:
    rate = "..." if max_rate is None else f"{max_rate:.2g}"
    how = "to be found by a range test" if max_rate is None else "by the range test"
    groups = ""
    if optimizer.distinct_lrs > 1:
        rate = "..." if max_rate is None or not optimizer.lr else f"{max_rate / optimizer.lr:.2g}"
        rate = f'[{rate} * group["lr"] for group in optimizer.param_groups]'
        how += "; the rates of the groups keep their proportion"
        groups = " of the first parameter group"
    return (
        f"# no scheduler, and the rate{groups} stayed at {optimizer.lr:g} over "
        f"{optimizer.steps} steps\n"
        "scheduler = torch.optim.lr_scheduler.OneCycleLR(\n"
        f"    optimizer, max_lr={rate}, total_steps=..., cycle_momentum=False)  # max_lr {how}\n"
        "scheduler.step()  # after each optimizer.step()"
    )


_SGD = {"ident": 0, "cls": "torch.optim.sgd.SGD", "lr": 0.01, "first_lr": 0.01, "steps": 60}

FIX = FixSpec(
    name="learning rate schedule",
    keeps_results="changes training",
    refuses=refuses,
    settings=lambda recording: [{"lowest_factor": _LOWEST, "highest_factor": _HIGHEST}],
    apply=apply,
    location=lambda recording: _stepped(recording)[0].location,
    instruction=instruction,
    training=TrainingAdvice(
        trial="range test",
        costs=(
            "a schedule brings more numbers to choose, and the rate has a large effect on how well "
            "a model generalises, which no short run shows."
        ),
        untriable=untriable,
    ),
    offers=[
        (process(optimizers=[_SGD]), "max_lr=..., total_steps"),
        (
            process(optimizers=[{**_SGD, "distinct_lrs": 2}]),
            'max_lr=[... * group["lr"] for group in optimizer.param_groups], total_steps',
        ),
    ],
    refusals=[
        ({}, "not known"),
        (process(optimizers=[{**_SGD, "lr": 0.02}]), "by itself"),
        (process(optimizers=[_SGD], flags={"schedulers": 1}), "makes a learning-rate scheduler"),
    ],
    example=Example(
        code="""
weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
optimizer = torch.optim.SGD([weight], lr=2.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
for step in range(3):
    before = weight.item()
    weight.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("moved by %g, rate %g" % (before - weight.item(), scheduler.get_last_lr()[0]))
    scheduler.step()
""",
        settings={"steps": 3, "lowest_factor": 0.1, "highest_factor": 10.0},
        without="moved by 2, rate 2\nmoved by 1, rate 1\nmoved by 0.5, rate 0.5",
        with_fix="moved by 0.2, rate 2\nmoved by 2, rate 1\nmoved by 20, rate 0.5",
    ),
)
