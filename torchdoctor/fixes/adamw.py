"""AdamW instead of Adam with weight decay.

## What it does
If torch.optim.Adam has a weight decay, the fix gives the class to use. In a trial launch the same
decay is taken off the weights before each step, as AdamW does, and losses are compared.

## Why it helps
Adam adds its weight decay to the gradient and divides both by the gradient's scale: weights with
large gradients hardly decay. AdamW decays the weights themselves, which usually generalises better.

## Risks
The best weight decay is another one, usually larger (0.01 to 0.1); the trial keeps the program's.
Only whole trainings show on validation data which of the two generalises better.

## Make it permanent
    optimizer = torch.optim.AdamW(..., weight_decay=0.01)

## Sources
- Loshchilov and Hutter, Decoupled Weight Decay Regularization: https://arxiv.org/abs/1711.05101
"""

from typing import Any

from torchdoctor.schema import Evidence, OptimizerFacts, Recording, fact
from torchdoctor.schema.specs import Example, FixSpec, Settings, TrainingAdvice, process


def refuses(recording: Recording) -> Evidence | None:
    if not _adams(recording):
        return fact("no-adam")
    if not any(adam.weight_decay for adam in _adams(recording)):
        return fact("no-weight-decay")
    return None


def _adams(recording: Recording) -> list[OptimizerFacts]:
    """Return the Adam optimizers, those with a weight decay first."""
    adams = [
        optimizer
        for optimizer in recording.main.optimizers
        if optimizer.cls.rpartition(".")[2] == "Adam"
    ]
    return sorted(adams, key=lambda adam: not adam.weight_decay)


def untriable(recording: Recording) -> Evidence | None:
    if any(optimizer.inside_backwards for optimizer in recording.main.optimizers):
        return fact("backward-in-closure")
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    taken: list[tuple[Any, float]] = []

    def decay(optimizer: Any) -> None:
        if type(optimizer) is not torch.optim.Adam:
            return
        for group in optimizer.param_groups:
            rate = group["lr"]
            weight_decay = group["weight_decay"]
            if not weight_decay or group.get("decoupled_weight_decay"):
                continue
            weights = [p for p in group["params"] if p.grad is not None]
            with torch.no_grad():
                for weight in weights:
                    weight.mul_(1 - rate * weight_decay)
            taken.append((group, weight_decay))
            group["weight_decay"] = 0.0
            program.applied(weight_decay=float(weight_decay))

    def give_back(optimizer: Any) -> None:
        for group, weight_decay in taken:
            group["weight_decay"] = weight_decay
        taken.clear()

    program.set_reason("no-adam-stepped")
    program.around_step(decay, give_back)


def instruction(settings: Settings, recording: Recording) -> str:
    optimizer = _adams(recording)[0]
    rate = "" if optimizer.lr is None else f"lr={optimizer.lr:g}, "
    return (
        "# in place of Adam, with its other arguments; weight_decay is what it is now: tune it\n"
        "optimizer = torch.optim.AdamW(model.parameters(), "
        f"{rate}weight_decay={optimizer.weight_decay:g})"
    )


_ADAM = {"ident": 0, "cls": "torch.optim.adam.Adam", "steps": 60}

FIX = FixSpec(
    name="AdamW",
    keeps_results="changes training",
    refuses=refuses,
    sentences={
        "no-adam": "The program does not use Adam.",
        "no-weight-decay": "Adam has no weight decay, and is the same as AdamW without one.",
        "backward-in-closure": "The backward passes run inside step(closure), where the decay "
        "cannot be moved.",
        "no-adam-stepped": "No Adam with a weight decay stepped.",
    },
    apply=apply,
    location=lambda recording: _adams(recording)[0].location,
    instruction=instruction,
    training=TrainingAdvice(
        costs=(
            "its best weight decay is another one, usually larger, and which of the two "
            "generalises better shows on validation data after whole trainings."
        ),
        untriable=untriable,
    ),
    offers=[
        (
            process(optimizers=[{**_ADAM, "weight_decay": 0.01}]),
            "torch.optim.AdamW(model.parameters(), weight_decay=0.01)",
        )
    ],
    refusals=[({}, "no-adam"), (process(optimizers=[_ADAM]), "no-weight-decay")],
    example=Example(
        code="""
weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
optimizer = torch.optim.Adam([weight], lr=0.1, weight_decay=0.5)
for step in range(2):
    optimizer.zero_grad(set_to_none=False)
    (0.0 * weight.sum()).backward()
    optimizer.step()
    print("%.4f, decay %g" % (weight.item(), optimizer.param_groups[0]["weight_decay"]))
""",
        without="0.9000, decay 0.5\n0.8004, decay 0.5",
        with_fix="0.9500, decay 0.5\n0.9025, decay 0.5",
    ),
)
