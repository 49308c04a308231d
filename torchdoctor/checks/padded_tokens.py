"""Much of what a model gets is padding.

## What it means
Rows of tokens are filled up to one length, and the model computes the filling too. Padding that all
rows of a batch share is there because the length is fixed; the rest, because long and short rows
share a batch.

## What to do
Let the longest row of each batch decide its length where the rows are filled up: `max(map(len,
rows))` for the size, `padding="longest"` for a tokenizer, a `collate_fn` instead of the whole set.

## How it is measured
The probe counts, in the first calls, the tokens behind the last one of each row that is no padding.
The line that fills them is looked for in the source, backwards from what the model's call is given;
it is told where there is only one.

## Not to be confused with
Padding to a multiple of 8, which adds a few tokens and gains more.
"""

from torchdoctor.queries.lookup import phase_share, training_models
from torchdoctor.schema import (
    CheckSpec,
    Evidence,
    ModelFacts,
    Recording,
    Symptom,
    Symptoms,
    fact,
    process,
)
from torchdoctor.schema.figures import source_line

_SHOWN = 60  # characters of a line


def _examine(recording: Recording) -> Symptoms:
    for model in training_models(recording):
        padding = model.padding_share or 0.0
        common = model.common_padding_share or None
        if padding < CHECK.threshold:
            continue
        backward = () if recording.infers else ("backward_s",)
        computed = phase_share(recording, "forward_s", *backward)
        yield Symptom(
            share=None if computed is None else computed * padding,
            evidence=[fact("padding", padding=padding, common=common), *_filled(model)],
            location=model.call.location if model.call else model.location,
        )


def _filled(model: ModelFacts) -> list[Evidence]:
    """Return the line that fills the rows, and what to write there."""
    rows = model.filled
    if rows is None:
        return []
    return [fact(rows.way, location=rows.location, text=source_line(rows.text, _SHOWN))]


_STEPS = {"boundary": {"kind": "forward", "learned_by": "forward"}, "forward_s": 0.01}
_MODEL = {"ident": 0, "forwards": 9, "common_padding_share": 0.8}
_FILLED = {"location": {"file": "/w/infer.py", "line": 29}, "text": "ids = torch.zeros(n, 256)"}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.1,
    unit="of the tokens are padding",
    source="torchdoctor: a gain that outlasts the noise of a pair",
    sentences={
        "padding": "{padding:.0%} of the tokens that the model gets are padding"
        "[, {common:.0%} at the end of all rows of a batch].",
        "fixed": "{location:place} fills rows up to a fixed length: the longest row of a batch is "
        "enough[ ({text})].",
        "asked": "{location:place} pads to the greatest length that there is: "
        'padding="longest" is enough[ ({text})].',
        "whole-set": "{location:place} pads all data to its longest row: padding each batch, in a "
        "collate_fn, is enough[ ({text})].",
    },
    advises=("fixed", "asked", "whole-set"),
    examine=_examine,
    closes_verdict=True,
    fires=[
        {"steps": _STEPS, **process(models=[{**_MODEL, "padding_share": 0.9}])},
        {"steps": {"forward_s": 0.01}, **process(models=[{**_MODEL, "padding_share": 0.9}])},
        *(
            {"steps": _STEPS, **process(models=[{**_MODEL, "padding_share": 0.9, "filled": rows}])}
            for rows in ({**_FILLED, "way": way} for way in ("fixed", "asked", "whole-set"))
        ),
    ],
    quiet=[{"steps": _STEPS, **process(models=[{**_MODEL, "padding_share": 0.05}])}],
)
