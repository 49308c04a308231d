"""Update all parameters in a few kernels instead of one after the other.

## What it does
Constructs the optimizer with `fused=True` if its class has a fused implementation (Adam, AdamW,
SGD, Adagrad), or else with `foreach=True`, which handles all tensors together.

## Why it helps
The loop (PyTorch's default on a CPU, `foreach` on a GPU) calls about ten operators a parameter. The
fused implementation updates many tensors in one kernel, which reads and writes each value once.

## Risks
The same formula with another order of rounding: results agree to the last digits, not bit by bit.
`foreach` needs temporary memory of about the size of the parameters. A model with sparse gradients
(`Embedding(sparse=True)`) or complex parameters fails in the trial, with torch's own words.

## Make it permanent
    optimizer = torch.optim.AdamW(..., fused=True)   # or the class that you use

## Sources
- PyTorch, torch.optim (table of implementations): https://docs.pytorch.org/docs/stable/optim.html
"""

from typing import Any

from torchdoctor.edits import DropKeywordEdit, Edit
from torchdoctor.edits.calls import call_edits, made_by_library, trainer_call, written
from torchdoctor.queries.lookup import place
from torchdoctor.queries.touched import calls, optimizer_update
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    OptimizerFacts,
    Recording,
    Settings,
    Touches,
    TraceStatistics,
    fact,
)

_FOREACH = ("Adadelta", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")


def refuses(recording: Recording) -> Evidence | None:
    stepping = _stepping(recording)
    if not stepping:
        return fact("no-optimizer")
    if settings(recording):
        return None
    names = sorted({_name(o) for o in stepping})
    if any(o.fused for o in stepping):
        return fact("fused-already", optimizers=names)
    if any(o.foreach for o in stepping) or any(o.device.startswith("cuda") for o in stepping):
        return fact("together-already", optimizers=names)
    return fact("neither-fused-nor-foreach", optimizers=names)


def settings(recording: Recording) -> list[Settings]:
    """Return fused if a class has it; foreach if another does not use it yet."""
    variants: list[Settings] = [{"fused": True}, {"foreach": True}]
    return [variant for variant in variants if _changed(variant, recording)]


def _stepping(recording: Recording) -> list[OptimizerFacts]:
    return [o for o in recording.main.optimizers if o.steps > 0]


def _name(optimizer: OptimizerFacts) -> str:
    return optimizer.cls.rpartition(".")[2]


def _changed(settings: Settings, recording: Recording) -> list[OptimizerFacts]:
    if settings.get("fused"):
        return [o for o in _stepping(recording) if o.supports_fused and not o.fused]
    # On a GPU None means foreach; on a CPU it means the loop.
    return [
        o
        for o in _stepping(recording)
        if o.cls.startswith("torch.optim.")
        and _name(o) in _FOREACH
        and not (o.foreach or (o.foreach is None and o.device.startswith("cuda")))
    ]


def apply(torch: Any, settings: Settings, program: Any) -> None:
    wanted, other = ("fused", "foreach") if settings.get("fused") else ("foreach", "fused")

    def choose(cls: Any, arguments: dict[str, Any]) -> bool:
        if wanted not in arguments or arguments[wanted] or arguments.get("differentiable"):
            return False
        if wanted == "foreach" and arguments.get("fused"):
            return False
        arguments[wanted] = True
        if arguments.get(other):
            arguments[other] = None
        program.applied(optimizer=cls.__name__, implementation=wanted)
        return True

    program.set_reason("no-such-optimizer", implementation=wanted)
    if program.switched:
        _switch(torch, choose, program)
    else:
        program.before_optimizer(choose)


def _switch(torch: Any, choose: Any, program: Any) -> None:
    """Change the groups of the optimizers that exist, which torch reads at each step."""
    before: list[tuple[Any, dict[str, Any], dict[str, Any]]] = []

    def on() -> None:
        parts = (part for module in program.modules for part in module.modules())
        if any(getattr(part, "sparse", False) for part in parts):
            program.give_up("gradients-may-be-sparse")  # the program's own step would fail
        for optimizer in program.optimizers():
            for group in optimizer.param_groups:
                kept = {name: group[name] for name in ("fused", "foreach") if name in group}
                if choose(type(optimizer), group):
                    before.append((optimizer, group, kept))
                    settle(optimizer, group)

    def off() -> None:
        while before:
            optimizer, group, kept = before.pop()
            group.update(kept)
            settle(optimizer, group)

    def settle(optimizer: Any, group: dict[str, Any]) -> None:
        """Leave it as its constructor would: it counts steps on the device where it is fused."""
        fused = bool(group.get("fused"))
        optimizer._step_supports_amp_scaling = fused
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(state.get("step"), torch.Tensor) and not group.get("capturable"):
                state["step"] = state["step"].to(parameter.device if fused else "cpu")

    program.at_first_batch(on, off)


def touches(recording: Recording) -> Touches:
    steps = recording.steps
    changed = {o.ident for o in _concerned(recording)}
    if steps is None or recording.has_gpu:
        return optimizer_update(recording)
    own_s = sum(seconds for ident, seconds in enumerate(steps.update_s) if ident in changed)
    if not changed:
        return None
    # A recording may not tell optimizers apart.
    most_s = min(own_s, steps.optimizer_s) if steps.update_s else steps.optimizer_s
    return calls(recording, most_s, "the optimizer's update")


def _concerned(recording: Recording) -> list[OptimizerFacts]:
    return [o for s in settings(recording) for o in _changed(s, recording)]


def instruction(settings: Settings, recording: Recording) -> str:
    asked = trainer_call(recording, settings)
    if asked is not None:
        return asked
    lines = []
    for optimizer in _changed(settings, recording):
        where = place(recording, optimizer.location, "where it is made")
        instead = "  # in place of foreach" if settings.get("fused") and optimizer.foreach else ""
        call = f"{where}  {_name(optimizer)}(..., {written(settings)}){instead}"
        lines.append(f"{call}{made_by_library(optimizer.location)}")
    return "\n".join(dict.fromkeys(lines)) or f"optimizer = ...(..., {written(settings)})"


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    made: list[Edit] = []
    for optimizer in _changed(settings, recording):
        name = _name(optimizer)
        where = optimizer.location
        made += (changed := call_edits(recording, where, name, settings))
        if changed and where is not None:  # torch refuses both at once
            other = "foreach" if settings.get("fused") else "fused"
            made.append(
                DropKeywordEdit(
                    file=where.file, line=where.line, callee=name, keyword=other, only_literal=True
                )
            )
    return list(dict.fromkeys(made))


def suits(trace: TraceStatistics) -> bool:
    fused = any("_fused_" in operator.name for operator in trace.operators)
    return trace.optimizes and not fused


FIX = FixSpec(
    name="fused optimizer",
    treats=("single-tensor-optimizer", "optimizer-share", "many-small-kernels", "python-overhead"),
    keeps_results="within rounding",
    when="between steps",
    p_helps=0.3,  # gained in 2 of 7 programs of benchmarks/logs
    refuses=refuses,
    sentences={
        "fused-already": "The optimizer ({optimizers:list}) is already fused.",
        "together-already": "{optimizers:list} has no fused implementation, and already handles "
        "its tensors together.",
        "neither-fused-nor-foreach": "{optimizers:list} has neither a fused nor a foreach "
        "implementation.",
        "no-optimizer": "The program steps no torch optimizer.",
        "no-such-optimizer": "No optimizer with a {implementation} implementation was made.",
    },
    settings=settings,
    touches=touches,
    suits=suits,
    apply=apply,
    location=lambda recording: next((o.location for o in _concerned(recording)), None),
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
groups = [{"params": model.parameters(), "lr": 0.1}]
optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
for step in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("fused:", optimizer.param_groups[0]["fused"], "tensors:", len(optimizer.state))
""",
        settings={"fused": True},
        without="fused: None tensors: 2",
        with_fix="fused: True tensors: 2",
    ),
)
