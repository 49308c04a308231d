"""Pad a batch of tokens to its own longest row.

## What it does
Cuts off the columns at the end of a batch that are padding in all of its rows, before the model is
called. At first both are computed and compared: where the output depends on the padding, nothing
is cut off.

## Why it helps
The model computes the padding too: linear layers in proportion to it, attention to its square.

## Risks
An output of another length than the fixed one, where the program counts on it.

## Make it permanent
    # in the collate_fn, for each batch by itself; pad: the token of the padding
    tokenizer(sentences, padding="longest", return_tensors="pt")   # not padding="max_length"
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)  # not a fixed length
    torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)

## Sources
- Hugging Face, Padding and truncation:
  https://huggingface.co/docs/transformers/pad_truncation
"""

from typing import Any

from torchdoctor.edits import Edit, InputEdit
from torchdoctor.queries.lookup import place, training_models
from torchdoctor.queries.touched import calls
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    Location,
    ModelFacts,
    Recording,
    Settings,
    Touches,
    fact,
    process,
)

_LEAST = 0.05  # of the tokens
_COMPARED = 3  # calls in which both are computed
# Up to the last column that holds a token: there the running count is first at its maximum.
_CUT = "{argument}[:, : int(({argument} != TOKEN).any(0).cumsum(0).argmax()) + 1]"


def refuses(recording: Recording) -> Evidence | None:
    if not _padded(recording):
        return fact("no-common-padding")
    return None


def _padded(recording: Recording) -> list[ModelFacts]:
    models = training_models(recording)
    return [m for m in models if (m.common_padding_share or 0.0) >= _LEAST]


def touches(recording: Recording) -> Touches:
    if recording.steps is None:
        return None
    share = max((m.padding_share or 0.0 for m in _padded(recording)), default=0.0)
    steps = recording.steps
    computed_s = steps.forward_s + (0.0 if recording.infers else steps.backward_s)
    return calls(recording, computed_s * share, "padding") if share else []


def apply(torch: Any, settings: Settings, program: Any) -> None:
    compared: dict[int, int] = {}

    def is_tokens(value: Any) -> bool:
        plain = isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32)
        return plain and value.dim() == 2 and value.numel() > 0

    def cut(module: Any, args: Any, kwargs: Any) -> Any:
        tokens = next(
            (argument for argument in (*args, *kwargs.values()) if is_tokens(argument)), None
        )
        if tokens is None:
            return None
        used = (tokens != program.padding_of(module)).any(0).nonzero()
        length = int(used[-1]) + 1 if len(used) else 1
        if length == tokens.shape[1]:
            return None

        def shorter(value: Any) -> Any:
            alike = isinstance(value, torch.Tensor) and value.shape == tokens.shape
            return value[:, :length] if alike else value

        return torch.utils._pytree.tree_map(shorter, (args, kwargs))

    def change(module: Any, args: Any, kwargs: Any) -> Any:
        cut_off = cut(module, args, kwargs)
        if cut_off is None:
            return None
        done = compared.get(id(module), 0)
        if done < _COMPARED:
            _refuse_incomparable(program, module)
            compared[id(module)] = done + 1
            with torch.no_grad():
                whole = module._call_impl(*args, **kwargs)
                part = module._call_impl(*cut_off[0], **cut_off[1])
            if not _same_output(torch, part, whole):
                program.refuse("output-depends-on-padding")
        program.applied()
        return cut_off

    program.set_reason("no-padding-to-cut")
    program.at("arguments", change)


def _same_output(torch: Any, of_cut: Any, of_whole: Any) -> bool:
    """Return whether all tensors of two outputs are the same but for the order of additions."""
    cut_leaves = torch.utils._pytree.tree_leaves(of_cut)
    whole_leaves = torch.utils._pytree.tree_leaves(of_whole)
    if len(cut_leaves) != len(whole_leaves):
        return False
    for leaf, whole in zip(cut_leaves, whole_leaves, strict=True):
        if not isinstance(leaf, torch.Tensor):
            continue
        if leaf.shape != whole.shape:
            return False
        scale = float(whole.float().abs().max()) if whole.numel() else 0.0
        if not torch.allclose(leaf.float(), whole.float(), rtol=1e-3, atol=1e-4 * scale):
            return False
    return True


def _refuse_incomparable(program: Any, module: Any) -> None:
    """Refuse where two calls of a module are not to be compared."""
    parts = list(module.modules()) if module.training else []
    if any(_draws(part) for part in parts):
        program.refuse("model-draws-random-numbers")
    if any(getattr(part, "track_running_stats", False) for part in parts):
        program.refuse("norm-takes-padding")


def _draws(part: Any) -> bool:
    """Return whether a layer draws random numbers in training mode."""
    shares = (getattr(part, name, 0) for name in ("p", "dropout"))
    return any(isinstance(share, (int, float)) and share > 0 for share in shares)


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    inputs: list[Edit] = []
    for model in _padded(recording):
        if model.call is None:
            return []
        place = model.call.location
        method = _CUT.replace("TOKEN", str(model.padding_token))
        inputs.append(
            InputEdit(file=place.file, line=place.line, callee=model.call.name, method=method)
        )
    return inputs


def instruction(settings: Settings, recording: Recording) -> str:
    filled = next((m.filled for m in _padded(recording) if m.filled), None)
    if filled is None:
        return FIX.permanent_form
    return f"# {place(recording, filled.location)}: {filled.text}\n{FIX.permanent_form}"


def location(recording: Recording) -> Location | None:
    return next((m.call.location for m in _padded(recording) if m.call), None)


_STEPS = {"boundary": {"kind": "forward", "learned_by": "forward"}}
FIX: FixSpec = FixSpec(
    name="padding to the longest",
    treats=("padded-tokens",),
    keeps_results="within rounding",
    when="between steps",
    phases=("forward_s", "backward_s"),
    touches=touches,
    p_helps=0.8,  # the padding is seen
    refuses=refuses,
    sentences={
        "no-common-padding": "No batch of tokens ends with padding in all of its rows.",
        "model-draws-random-numbers": "The model draws random numbers in training mode.",
        "norm-takes-padding": "Batch norm takes the padding for a part of the batch.",
        "output-depends-on-padding": "The model's output depends on the padding.",
        "no-padding-to-cut": "No batch of tokens ended with padding in all of its rows.",
    },
    apply=apply,
    location=location,
    instruction=instruction,
    edits=edits,
    refusals=[
        ({}, "no-common-padding"),
        ({"steps": _STEPS, **process(models=[{"ident": 0, "forwards": 9}])}, "no-common-padding"),
    ],
    example=Example(
        code="""
class Mean(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(9, 4, padding_idx=0)
    def forward(self, ids):
        seen.add(ids.shape[1])
        return self.embedding(ids).sum(1) / (ids != 0).sum(1, keepdim=True)

seen, model = set(), Mean().eval()
ids = torch.tensor([[1, 2, 3, 0, 0, 0], [4, 5, 0, 0, 0, 0]])
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids), batch_size=2)
with torch.no_grad():
    for _ in range(5):
        for (x,) in data:
            seen.clear()
            model(x)
print("lengths:", seen)
""",
        without="lengths: {6}",
        with_fix="lengths: {3}",
    ),
)
