"""Compute the activations of repeated blocks again instead of keeping them.

## What it does
Runs each block that the model repeats (a transformer's layers, a residual network's blocks) under
`torch.utils.checkpoint`: its inner activations are dropped after the forward pass and computed
again in the backward pass. Batch normalization would count twice: blocks with it are left alone.

## Why it helps
It saves memory, not time: of a block only its input stays, and a step takes up to a third longer.
The memory it frees allows a larger batch or a deeper model, which may more than pay for it.

## Risks
Blocks with side effects (counters, caches) have them twice; random numbers (dropout) are replayed.

## Make it permanent
    from torch.utils.checkpoint import checkpoint

    for block in self.blocks:
        x = checkpoint(block, x, use_reentrant=False)

## Sources
- PyTorch, torch.utils.checkpoint: https://docs.pytorch.org/docs/stable/checkpoint.html
"""

from typing import Any

from torchdoctor.queries.lookup import training_models
from torchdoctor.schema import Evidence, Example, FixSpec, ModelFacts, Recording, Settings, fact


def refuses(recording: Recording) -> Evidence | None:
    models = training_models(recording)
    if any(model.compiled for model in models):
        return fact("compiled")
    if not _repeating(recording):
        return fact("no-repeated-block")
    return None


def _repeating(recording: Recording) -> list[ModelFacts]:
    return [model for model in training_models(recording) if model.repeated_blocks > 1]


def apply(torch: Any, settings: Settings, program: Any) -> None:
    """Checkpoint the forward of each repeated block, by its class: nothing is set on the model."""
    from torch.utils.checkpoint import checkpoint

    chosen: set[int] = set()
    patched: set[Any] = set()

    def make(old: Any) -> Any:
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if id(self) not in chosen or not torch.is_grad_enabled():
                return old(self, *args, **kwargs)
            program.applied()
            return checkpoint(old, self, *args, use_reentrant=False, **kwargs)

        return forward

    def look(model: Any) -> None:
        norms = torch.nn.modules.batchnorm._BatchNorm
        for parent in model.modules():
            blocks = [b for b in parent.children() if type(b).__name__ == settings["block"]]
            if len(blocks) < 2:
                continue
            if any(isinstance(m, norms) and m.track_running_stats for m in blocks[0].modules()):
                program.refuse("norms-would-count-twice")
            chosen.update(map(id, blocks))
            for cls in set(map(type, blocks)) - patched:
                patched.add(cls)
                program.replace(cls, "forward", make)

    program.set_reason("no-block-called")
    program.on_model(look)


FIX = FixSpec(
    name="recompute activations",
    treats=("memory-near-limit",),
    keeps_results="exactly",
    p_helps=0.1,  # it trades time for memory
    needs_finding=True,  # it trades time for memory: only where memory is short
    no_bound="It saves memory, and a step takes longer with it.",
    refuses=refuses,
    sentences={
        "compiled": "The model is compiled: torch.compile chooses by itself what to keep.",
        "no-repeated-block": "The model repeats no block whose activations could be computed "
        "again.",
        "norms-would-count-twice": "The blocks hold batch normalization, which would count twice.",
        "no-block-called": "No forward pass of such a block was seen.",
    },
    settings=lambda recording: [{"block": m.repeated_block} for m in _repeating(recording)],
    apply=apply,
    location=lambda recording: next((model.location for model in _repeating(recording)), None),
    instruction=lambda settings, _: (
        "from torch.utils.checkpoint import checkpoint\n"
        f"x = checkpoint(block, x, use_reentrant=False)  # for each {settings['block']}"
    ),
    example=Example(
        code="""
class Block(torch.nn.Module):
    calls = 0
    def __init__(self):
        super().__init__()
        self.layer, self.drop = torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)
    def forward(self, x):
        Block.calls += 1
        return x + self.drop(torch.relu(self.layer(x)))
def as_written(x):
    for block in blocks:
        x = x + block.drop(torch.relu(block.layer(x)))
    return x
def gradients(forward):
    blocks.zero_grad()
    for seed, (x,) in enumerate(torch.utils.data.DataLoader(data, batch_size=2)):
        torch.manual_seed(seed)
        forward(x).square().mean().backward()
    return [p.grad for p in blocks.parameters()]
blocks = torch.nn.Sequential(*(Block() for _ in range(3)))
data = torch.utils.data.TensorDataset(torch.randn(8, 8))
pairs = zip(gradients(blocks), gradients(as_written))
same = all(torch.equal(*pair) for pair in pairs)
print("same gradients:", same, "blocks computed again:", Block.calls > 12)
""",
        settings={"block": "Block"},
        without="same gradients: True blocks computed again: False",
        with_fix="same gradients: True blocks computed again: True",
    ),
)
