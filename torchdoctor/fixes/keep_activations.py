"""Keep the activations of a forward pass where memory has room, not compute them again.

## What it does
Calls what `torch.utils.checkpoint.checkpoint` was given directly, so that autograd keeps what the
backward pass needs.

## Why it helps
Activation checkpointing computes each checkpointed forward pass a second time, in the backward
pass: a quarter to a third of the step.

## Risks
It takes the memory that checkpointing saved. Where that is short, checkpoint every second layer.

## Make it permanent
    x = layer(x)          # in place of x = checkpoint(layer, x, use_reentrant=False)
    # or the library's switch: model.gradient_checkpointing_disable()

## Sources
- PyTorch, torch.utils.checkpoint: https://docs.pytorch.org/docs/stable/checkpoint.html
"""

from typing import Any

from torchdoctor.fixes._parts import SampledLines
from torchdoctor.queries.hardware import memory_is_short
from torchdoctor.queries.known_shapes import rows_of_shapes
from torchdoctor.queries.touched import phases
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, fact, process

_SHAPE = "activations-computed-again"
_OWN = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop")


_LINES = SampledLines(
    rows=lambda recording: rows_of_shapes(recording, _SHAPE),
    label="checkpointed layers",
    none="No line was seen that checkpoints activations.",
)


def refuses(recording: Recording) -> Evidence | None:
    if (reason := _LINES.refuses(recording)) is not None:
        return reason
    return fact("memory-is-short") if memory_is_short(recording) else None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    import torch.utils.checkpoint as module

    def make(old: Any) -> Any:
        def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
            if not program.usable:
                return old(function, *args, **kwargs)
            program.applied()
            for name in (*_OWN, "preserve_rng_state"):
                kwargs.pop(name, None)
            return function(*args, **kwargs)

        return checkpoint

    program.set_reason("nothing-checkpointed")
    program.replace_function(module.__file__, "checkpoint", make)


_ROW: dict[str, Any] = {
    "location": {"file": "/w/train.py", "line": 12, "function": "forward"},
    "phase": "forward",
    "count": 90,
    "text": "x = checkpoint(layer, x, use_reentrant=False)",
}
FIX: FixSpec = FixSpec(
    name="keep activations",
    treats=("compute", "many-small-kernels", "python-overhead"),
    keeps_results="within rounding",
    when="between steps",
    # They are computed again in the backward pass, for as long as in the forward pass at most.
    touches=lambda recording: phases(recording, "forward_s", label="layers computed again"),
    p_helps=0.7,
    refuses=refuses,
    sentences=_LINES.sentences
    | {
        "nothing-checkpointed": "Nothing was checkpointed.",
        "memory-is-short": "Memory is short: that is what it is for.",
    },
    suits=lambda trace: False,
    apply=apply,
    location=_LINES.location,
    instruction=lambda settings, recording: FIX.permanent_form,
    offers=[(process(stacks=[_ROW]), "layer(x)")],
    refusals=[(process(), "no-such-line")],
    example=Example(
        code="""
from torch.utils.checkpoint import checkpoint
passes = []
class Layer(torch.nn.Linear):
    def forward(self, x):
        passes.append(1)
        return super().forward(x)
torch.manual_seed(0)
model = Layer(2, 1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = model
    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)
net, data = Net(), torch.utils.data.TensorDataset(torch.ones(20, 2))
for (x,) in torch.utils.data.DataLoader(data):
    model.zero_grad()
    net(x).square().sum().backward()
print("few passes:", len(passes) < 30, "gradient: %.3f" % model.bias.grad.item())
""",
        without="few passes: False gradient: -0.416",
        with_fix="few passes: True gradient: -0.416",
    ),
)
