"""Decode with a cache of fixed size, so that the compiled forward is made for it once.

## What it does
It gives the lines for `generate` of transformers: keys and values get their whole room at once, and
`torch.compile` makes one program for every token.

## Why it helps
The usual cache grows by one token at each call, so that its sizes never stay the same. With fixed
ones the many small operators of a single token become few.

## Risks
The first call compiles: 46 s on one busy core; a prompt of another length did so once more. 4
layers, 128 wide, 64 new tokens, were 1.7x as fast there after 16 tokens (three fifths of 21 pairs
of calls: 1.4x to 2.7x), and undecided after 23 (0.7x to 1.9x); all tokens of 20 sequences stayed
the same. No GPU was tried.

## Make it permanent
    model.generation_config.cache_implementation = "static"
    model.forward = torch.compile(model.forward)
    tokens = model.generate(**inputs, max_new_tokens=64)

## Sources
- Hugging Face, Optimizing inference:
  https://huggingface.co/docs/transformers/llm_optims
"""

from torchdoctor.fixes._parts import infers_elsewhere
from torchdoctor.queries.lookup import training_models
from torchdoctor.queries.touched import phases
from torchdoctor.schema import Evidence, FixSpec, Recording, fact, process


def refuses(recording: Recording) -> Evidence | None:
    if elsewhere := infers_elsewhere(recording):
        return elsewhere
    main = recording.main
    generates = any(entry.name == "generate" and entry.calls for entry in main.entry_points)
    if not generates or "transformers" not in main.frameworks:
        return fact("no-generate-call")
    models = training_models(recording)
    if any(model.compiled for model in models):
        return fact("compiled-already")
    if any(model.grown_calls for model in models):
        return fact("decodes-without-cache")
    return None


_STEPS = {"boundary": {"kind": "entry", "learned_by": "forward"}}
_MODEL = {"ident": 0, "forwards": 99}
_GENERATE = {"entry_points": [{"ident": 0, "name": "generate", "calls": 9}]}
_OF_TRANSFORMERS = {**_GENERATE, "frameworks": ["transformers"]}
FIX: FixSpec = FixSpec(
    name="static cache",
    treats=("python-overhead", "many-small-kernels", "cpu-execution"),
    keeps_results="within rounding",
    untried="how long the sequences become, which the cache is made for, only the program knows.",
    touches=lambda recording: phases(recording, "forward_s"),
    refuses=refuses,
    sentences={
        "no-generate-call": "No call of `generate` of transformers was seen.",
        "decodes-without-cache": "The model decodes without a cache: see key-value-cache first.",
    },
    suits=lambda trace: False,
    instruction=lambda settings, recording: FIX.permanent_form,
    offers=[
        ({"steps": _STEPS, **process(models=[_MODEL], **_OF_TRANSFORMERS)}, '"static"'),
    ],
    refusals=[
        ({}, "program-trains"),
        (
            {"steps": _STEPS, **process(models=[{**_MODEL, "device": "cuda:0"}], **_GENERATE)},
            "run-on-cpus-alone",
        ),
        (
            {"steps": _STEPS, **process(models=[_MODEL], frameworks=["transformers"])},
            "no-generate-call",
        ),
        ({"steps": _STEPS, **process(models=[_MODEL], **_GENERATE)}, "no-generate-call"),
        (
            {
                "steps": _STEPS,
                **process(models=[{**_MODEL, "compiled": True}], **_OF_TRANSFORMERS),
            },
            "compiled-already",
        ),
        (
            {
                "steps": _STEPS,
                **process(models=[{**_MODEL, "grown_calls": 90}], **_OF_TRANSFORMERS),
            },
            "decodes-without-cache",
        ),
    ],
)
