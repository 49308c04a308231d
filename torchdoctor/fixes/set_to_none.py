"""Drop gradients between steps instead of filling them with zeros.

## What it does
Makes `zero_grad(set_to_none=False)` set gradients to None, the default since PyTorch 2.0.

## Why it helps
Filling with zeros writes every gradient once, and the backward pass then reads and adds to it.
With None, the backward pass writes the gradient directly.

## Risks
A parameter without a gradient in a step is skipped, although momentum and weight decay would have
moved it. Code that reads `parameter.grad` right after `zero_grad()` finds None.

## Make it permanent
    optimizer.zero_grad()                      # set_to_none=True is the default

## Sources
- PyTorch documentation, torch.optim.Optimizer.zero_grad:
  https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
"""

from typing import Any

from torchdoctor.edits.calls import call_edits
from torchdoctor.queries.lookup import place
from torchdoctor.queries.touched import zeroing
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, fact


def refuses(recording: Recording) -> Evidence | None:
    if recording.main.flags.zero_grad_to_zero == 0:
        return fact("set-to-none-already")
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    def make(old: Any) -> Any:
        def zero_grad(self: Any, set_to_none: bool = True) -> None:
            if not set_to_none:
                program.applied()
            old(self, set_to_none=True)

        return zero_grad

    program.set_reason("no-zero-grad-to-zero")
    program.replace(torch.optim.Optimizer, "zero_grad", make)
    program.replace(torch.nn.Module, "zero_grad", make)


def instruction(settings: Settings, recording: Recording) -> str:
    where = place(recording, recording.main.flags.zero_grad_location, "where it is called")
    return f"{where}  zero_grad(set_to_none=True)"


FIX = FixSpec(
    name="drop gradients",
    treats=("zero-grad-to-zero", "memset-share"),
    keeps_results="exactly",
    phases=("backward_s", "optimizer_s", "other_s"),
    when="between steps",
    p_helps=0.2,
    refuses=refuses,
    sentences={
        "set-to-none-already": "Nothing calls zero_grad(set_to_none=False): gradients are set to "
        "None already.",
        "no-zero-grad-to-zero": "Nothing called zero_grad(set_to_none=False).",
    },
    touches=zeroing,
    suits=lambda trace: trace.trains is True,
    apply=apply,
    location=lambda recording: recording.main.flags.zero_grad_location,
    instruction=instruction,
    edits=lambda settings, recording: call_edits(
        recording, recording.main.flags.zero_grad_location, "zero_grad", {"set_to_none": True}
    ),
    example=Example(
        code="""
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
optimizer.zero_grad(set_to_none=False)
print("gradient:", model.bias.grad)
model(torch.ones(2, 4)).sum().backward()
print("and then:", model.bias.grad)
""",
        without="gradient: tensor([0.])\nand then: tensor([2.])",
        with_fix="gradient: None\nand then: tensor([2.])",
    ),
)
