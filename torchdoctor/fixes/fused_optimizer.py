"""Update all parameters in a few kernels instead of one after the other.

What it does
------------
Constructs the optimizer with `fused=True` if its class has a fused implementation (Adam, AdamW,
SGD, Adagrad), or else with `foreach=True`, which handles all tensors together, one operation at a
time.

Why it helps
------------
The plain implementation calls about ten small operators for each parameter: a model with 200
tensors means 2000 calls a step. The fused implementation updates many tensors in one kernel, which
reads and writes each value once. The loop is PyTorch's default on a CPU, `foreach` on a GPU.

Risks
-----
The same formula with another order of rounding: results agree to the last digits, not bit by bit.
`foreach` needs temporary memory of about the size of the parameters. A model with sparse gradients
(`Embedding(sparse=True)`) fails in the trial.

Make it permanent
-----------------
    optimizer = torch.optim.AdamW(..., fused=True)   # or the class that you use

Sources
-------
- PyTorch documentation, torch.optim (table of for-loop, foreach and fused implementations):
  https://docs.pytorch.org/docs/stable/optim.html
- PyTorch documentation, torch.optim.AdamW, `fused`:
  https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
"""

from __future__ import annotations

from typing import Any

from torchdoctor.edits import DropKeywordEdit, Edit
from torchdoctor.edits.calls import call_edits, made_by_library, written
from torchdoctor.edits.trainers import trainer_call
from torchdoctor.facts.lookup import place, trains
from torchdoctor.words import Location, OptimizerFacts, Recording
from torchdoctor.words.specs import Example, FixSpec

_FOREACH = ("Adadelta", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
_DEVICES = ("cuda", "cpu", "xpu", "mps")


def refuses(recording: Recording) -> str | None:
    """Return why another implementation cannot apply."""
    stepping = _stepping(recording)
    if not stepping:
        return "The program steps no torch optimizer."
    if settings(recording):
        return None
    names = ", ".join(sorted({_name(o) for o in stepping}))
    if any(o.fused for o in stepping):
        return f"The optimizer ({names}) is already fused."
    if any(o.foreach for o in stepping) or any(o.device.startswith("cuda") for o in stepping):
        return f"{names} has no fused implementation, and already handles its tensors together."
    return f"{names} has neither a fused nor a foreach implementation."


def settings(recording: Recording) -> list[dict[str, Any]]:
    """Return fused if a class has it; foreach if another does not use it yet."""
    variants: list[dict[str, Any]] = []
    stepping = _stepping(recording)
    if any(o.supports_fused and not o.fused for o in stepping):
        variants.append({"fused": True})
    if any(_can_foreach(o) for o in stepping):
        variants.append({"foreach": True})
    return variants


def _stepping(recording: Recording) -> list[OptimizerFacts]:
    return [o for o in recording.main.optimizers if o.steps > 0]


def _name(optimizer: OptimizerFacts) -> str:
    return optimizer.cls.rpartition(".")[2]


def _can_foreach(optimizer: OptimizerFacts) -> bool:
    # On a GPU None means foreach; on a CPU it means the loop.
    is_default = optimizer.foreach is None and optimizer.device.startswith("cuda")
    known = _name(optimizer) in _FOREACH and optimizer.cls.startswith("torch.optim.")
    return known and not optimizer.foreach and not is_default


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Change the arguments of every optimizer that can take the implementation."""
    wanted = "fused" if settings.get("fused") else "foreach"
    other = "foreach" if wanted == "fused" else "fused"

    def choose(cls: Any, arguments: dict[str, Any]) -> None:
        if wanted not in arguments or arguments[wanted]:
            return
        if arguments.get("differentiable") or (wanted == "foreach" and arguments.get("fused")):
            return
        groups = _listed(torch, arguments["params"])
        arguments["params"] = groups  # a generator can be read once only
        reason = _unsuitable(torch, groups, wanted)
        if reason is not None:
            program.set_reason(reason)
            return
        arguments[wanted] = True
        if arguments.get(other):
            arguments[other] = None
        program.applied(optimizer=cls.__name__, implementation=wanted)

    program.set_reason(f"No optimizer with a {wanted} implementation was made.")
    program.before_optimizer(choose)


def _listed(torch: Any, parameters: Any) -> Any:
    if isinstance(parameters, torch.Tensor):
        return parameters  # the user's mistake, with torch's own words
    groups = []
    for item in parameters:
        if isinstance(item, dict) and not isinstance(item.get("params"), torch.Tensor):
            item = {**item, "params": list(item["params"])}
        groups.append(item)
    return groups


def _unsuitable(torch: Any, groups: Any, wanted: str) -> str | None:
    tensors: list[Any] = []
    for item in groups:
        if isinstance(item, dict):
            if "fused" in item or "foreach" in item:
                return "Its parameter groups choose their implementation themselves."
            inner = item["params"]
            tensors += [inner] if isinstance(inner, torch.Tensor) else inner
        else:
            tensors.append(item)
    if wanted == "foreach":
        return None
    named = [x[1] if isinstance(x, tuple) else x for x in tensors]
    for tensor in (x for x in named if isinstance(x, torch.Tensor)):
        if not tensor.is_floating_point() or tensor.device.type not in _DEVICES:
            return f"A parameter ({tensor.dtype} on {tensor.device}) cannot be updated fused."
    return None


def _changed(settings: dict[str, Any], recording: Recording) -> list[OptimizerFacts]:
    if settings.get("fused"):
        return [o for o in _stepping(recording) if o.supports_fused and not o.fused]
    return [o for o in _stepping(recording) if _can_foreach(o)]


def works_on_s(recording: Recording) -> float | None:
    """Return the seconds of a step in updates that another implementation would do."""
    steps = recording.steps
    changed: dict[int, OptimizerFacts] = {}
    for variant in settings(recording):
        changed |= {optimizer.ident: optimizer for optimizer in _changed(variant, recording)}
    if steps is None or not changed:
        return None
    if not steps.update_s:
        return steps.optimizer_s  # a recording that does not tell them apart
    return min(
        sum(steps.update_s[ident] for ident in changed if ident < len(steps.update_s)),
        steps.optimizer_s,
    )


def location(recording: Recording) -> Location | None:
    """Return where the first optimizer that it concerns is made."""
    concerned = [o for s in settings(recording) for o in _changed(s, recording)]
    return concerned[0].location if concerned else None


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """Return the argument to set, and where."""
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


def edits(settings: dict[str, Any], recording: Recording) -> list[Edit]:
    """Return the same as a source edit; none if the place is not known."""
    made: list[Edit] = []
    for optimizer in _changed(settings, recording):
        name, where = _name(optimizer), optimizer.location
        made += (changed := call_edits(recording, where, name, settings))
        if changed and where is not None:  # torch refuses both at once
            other = "foreach" if settings.get("fused") else "fused"
            made.append(
                DropKeywordEdit(
                    file=where.file, line=where.line, callee=name, keyword=other, only_literal=True
                )
            )
    return list(dict.fromkeys(made))


FIX = FixSpec(
    file=__file__,
    page=__doc__,
    treats=("single-tensor-optimizer", "optimizer-share", "many-small-kernels", "python-overhead"),
    keeps_results="within rounding",
    when="launch",
    p_helps=0.5,  # it pays where there are many small parameters
    refuses=refuses,
    settings=settings,
    works_on_s=works_on_s,
    suits=trains,
    apply=apply,
    location=location,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
import torch

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
