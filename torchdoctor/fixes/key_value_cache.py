"""Keep keys and values of earlier tokens while decoding.

## What it does
Where a call gets the tokens of the call before and one more, the model computes that one alone:
`scaled_dot_product_attention` gets the keys and values of earlier calls beside it, and
`torch.arange` goes on counting. At first both ways are computed and compared; where they differ,
the whole sequence is computed as before. Where the program says `use_cache=False`, generation of
transformers is given its own cache instead.

## Why it helps
Without a cache each new token costs as much as all tokens before it together.

## Risks
Memory for the keys and values. Rounding: other kernels compute a single token.

## Make it permanent
    model.generate(**inputs, use_cache=True)          # transformers
    logits, cache = model(ids[:, -1:], cache=cache)   # a model of your own: keep keys and values

## Sources
- Hugging Face, Caching: https://huggingface.co/docs/transformers/cache_explanation
"""

import sys
from typing import Any

from torchdoctor.edits import AssignedEdit, Edit, KeywordEdit
from torchdoctor.edits.switched_off import SwitchedOff, switched_off
from torchdoctor.queries.lookup import place, training_models
from torchdoctor.queries.touched import phases
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    Location,
    ModelFacts,
    Recording,
    Settings,
    fact,
    process,
)

_LEAST = 0.5  # of the calls that were looked at
_LOOKED_AT = 128
_COMPARED = 3  # calls in which both ways are computed
_SWITCH = "use_cache"
_GENERATION = "transformers.generation.utils"


def _growing(recording: Recording) -> list[ModelFacts]:
    models = training_models(recording)
    return [m for m in models if m.grown_calls > _LEAST * min(m.forwards, _LOOKED_AT)]


def refuses(recording: Recording) -> Evidence | None:
    if not recording.infers:
        return fact("for-programs-that-infer")
    if not _growing(recording):
        return fact("no-growing-sequence")
    return None


def _off(recording: Recording) -> list[SwitchedOff]:
    """Return the lines that switch the cache of transformers off."""
    calls = [m.call.location.file for m in _growing(recording) if m.call is not None]
    files = sorted({*calls, recording.workload.script or ""} - {""})
    return [line for file in files for line in switched_off(file, _SWITCH)]


def settings(recording: Recording) -> list[Settings]:
    return [{_SWITCH: True}] if _off(recording) else [{}]


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    lines = _off(recording) if settings.get(_SWITCH) else []
    changed: list[Edit] = []
    for off in lines:
        file = off.file
        line = off.line
        if off.callee is None:
            changed.append(AssignedEdit(file=file, line=line, name=_SWITCH, value="True"))
            continue
        called = KeywordEdit(file=file, line=line, callee=off.callee, keyword=_SWITCH, value="True")
        changed.append(called)
    return changed


class _Sequence:
    """The tokens of the call before, its output, and keys and values of each attention."""

    def __init__(self) -> None:
        self.tokens: Any = None
        self.output: Any = None
        self.kept: list[Any] = []
        self.compared = 0

    def grew_to(self, tokens: Any) -> bool:
        """Return whether these are its tokens and one more."""
        before = self.tokens
        if not self.kept or len(before) != len(tokens):
            return False
        longer = tokens.shape[1] == before.shape[1] + 1
        return bool(longer and (tokens[:, :-1] == before).all())

    def begin(self) -> None:
        """Forget the keys and values of another sequence."""
        self.kept = []

    def keep(self, tokens: Any, output: Any) -> None:
        """Note a call and its answer."""
        self.tokens = tokens
        self.output = output

    def is_to_compare(self) -> bool:
        """Return whether both ways are to be computed, which counts as done."""
        self.compared += 1
        return self.compared <= _COMPARED


def _caching(torch: Any, program: Any) -> Any:
    """Return the mode in which attention gets the keys and values of earlier tokens."""
    attention = torch.nn.functional.scaled_dot_product_attention

    class Caching(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        """Keeps keys and values in `kept`; `past`: tokens that are there already."""

        def __init__(self, kept: Any, past: int) -> None:
            super().__init__()
            self.kept = kept
            self.past = past
            self.calls = 0

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if function is attention:
                return self.attend(*args, **kwargs)
            result = function(*args, **kwargs)
            if function is torch.arange and self.past and len(result) == 1:
                return result + self.past
            return result

        def attend(self, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            if not self.past:
                self.kept[number:] = [(key, value)]
                return attention(query, key, value, *args, **kwargs)
            if args or kwargs.get("attn_mask") is not None:
                program.refuse("masks-attention-itself")
            keys, values = self.kept[number]
            key, value = torch.cat([keys, key], -2), torch.cat([values, value], -2)
            self.kept[number] = key, value
            kwargs.pop("is_causal", None)  # the last token sees all
            return attention(query, key, value, **kwargs)

    return Caching


def _switch_on(program: Any) -> None:
    """Let transformers generate with its own cache, whatever the program says."""

    def make(old: Any) -> Any:
        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get(_SWITCH) is False:
                kwargs[_SWITCH] = True
                program.applied()
            configs = [getattr(model, name, None) for name in ("config", "generation_config")]
            for config in (*configs, kwargs.get("generation_config")):
                if getattr(config, _SWITCH, None) is False:
                    setattr(config, _SWITCH, True)
                    program.applied()
            return old(model, *args, **kwargs)

        return generate

    def replace() -> None:
        if _GENERATION not in sys.modules:
            program.refuse("does-not-generate")
        program.replace(sys.modules[_GENERATION].GenerationMixin, "generate", make)

    program.set_reason("no-call-without-cache")
    program.at_first_batch(replace)


def apply(torch: Any, settings: Settings, program: Any) -> None:
    if settings.get(_SWITCH):
        _switch_on(program)
        return
    caching = _caching(torch, program)
    sequences: dict[int, _Sequence] = {}

    def is_close(output: Any, whole: Any) -> bool:
        scale = float(whole.float().abs().max())
        ours = output.float()
        theirs = whole.float()
        if ours.shape != theirs.shape:
            return False
        return bool(torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * scale))

    def next_token(sequence: _Sequence, module: Any, tokens: Any) -> Any:
        past = sequence.tokens.shape[1]
        before = sequence.output
        with caching(sequence.kept, past):
            output = module._call_impl(tokens[:, -1:])
        if before.dim() == 3 and before.shape[1] == past:  # it answers for each token
            output = torch.cat([before, output], 1)
        if sequence.is_to_compare() and not is_close(output, module._call_impl(tokens)):
            program.refuse("single-token-differs")
        program.applied()
        return output

    def answer(module: Any, args: Any, kwargs: Any) -> Any:
        tokens: Any = args[0] if len(args) == 1 and not kwargs else None
        plain = isinstance(tokens, torch.Tensor) and tokens.dtype == torch.int64
        if not plain or tokens.dim() != 2 or (torch.is_grad_enabled() and module.training):
            return None
        sequence = sequences.setdefault(id(module), _Sequence())
        if sequence.grew_to(tokens):
            output = next_token(sequence, module, tokens)
        else:
            sequence.begin()
            with caching(sequence.kept, 0):
                output = module._call_impl(tokens)
        if not isinstance(output, torch.Tensor):
            program.refuse("gives-several-tensors")
        sequence.keep(tokens, output)
        return (output,)

    program.set_reason("no-sequence-grew")
    program.around_model(answer, lambda *_: None)


def instruction(settings: Settings, recording: Recording) -> str:
    if off := _off(recording):
        places = [Location(file=line.file, line=line.line) for line in off]
        return "\n".join(
            f"{place(recording, switch)}  {_SWITCH} is False: leave it out" for switch in places
        )
    lines = []
    for model in _growing(recording):
        where = place(recording, model.call.location if model.call else None, "where it decodes")
        name = model.call.name if model.call else "model"
        lines.append(
            f"{where}  give {name} the last token alone, with the keys and values of earlier ones"
        )
    return "\n".join([*lines, FIX.permanent_form])


def location(recording: Recording) -> Location | None:
    return next((m.call.location for m in _growing(recording) if m.call), None)


_STEPS = {"boundary": {"kind": "forward", "learned_by": "forward"}}
FIX: FixSpec = FixSpec(
    name="key-value cache",
    treats=("decoding-without-cache",),
    keeps_results="within rounding",
    when="launch",
    touches=lambda recording: phases(recording, "forward_s"),
    phases=("forward_s",),
    p_helps=0.7,  # the repeated tokens are seen; the model may hide its attention
    needs_finding=True,
    refuses=refuses,
    sentences={
        "no-growing-sequence": "No sequence of tokens grew by one at each call.",
        "masks-attention-itself": "The model masks its attention by a tensor of its own.",
        "does-not-generate": "transformers does not generate here.",
        "no-call-without-cache": "No call generated without its cache.",
        "single-token-differs": "The model computes something else of a single token.",
        "gives-several-tensors": "The model gives more than one tensor.",
        "no-sequence-grew": "No sequence grew by one token.",
    },
    settings=settings,
    apply=apply,
    edits=edits,
    location=location,
    instruction=instruction,
    refusals=[
        ({}, "for-programs-that-infer"),
        ({"steps": _STEPS, **process(models=[{"ident": 0, "forwards": 9}])}, "no-growing-sequence"),
    ],
    example=Example(
        code="""
class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.head = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20)
    def forward(self, ids):
        x = self.token(ids).unsqueeze(1)
        lengths.append(x.shape[2])
        causal = x.shape[2] > 1
        x = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=causal)
        return self.head(x[:, 0, -1])

torch.manual_seed(0)
lengths, model = [], Decoder().eval()
data = torch.utils.data.TensorDataset(torch.randint(0, 20, (2, 4)))
with torch.no_grad():
    for (ids,) in torch.utils.data.DataLoader(data):
        for _ in range(8):
            ids = torch.cat([ids, model(ids).argmax(-1, keepdim=True)], 1)
        print(lengths[-2:], end=" ")
""",
        without="[10, 11] [10, 11]",
        with_fix="[1, 1] [1, 1]",
    ),
)
