"""Put texts of like length into one batch, and the results back into their order.

## What it does
It gives the code: texts are sorted by their number of tokens before they are batched, and each
result is put where its text stood.

## Why it helps
A batch is padded to its longest row. Of texts in any order long and short ones share a batch, and
the model computes the padding of all short ones.

## Risks
Results come in another order until they are put back, so none may be written before. In a training
batches of one length change what is learned: sort within shuffled chunks there.

## Make it permanent
    order = sorted(range(len(texts)), key=lambda i: len(tokenized[i]))
    results = [None] * len(texts)
    loader = DataLoader(order, batch_size=32, collate_fn=lambda chosen: (chosen, batch_of(chosen)))
    for chosen, batch in loader:
        for i, output in zip(chosen, model(batch)):
            results[i] = output

## Sources
- Sentence Transformers, encode sorts its sentences by length:
  https://sbert.net/docs/package_reference/sentence_transformer/SentenceTransformer.html
"""

from torchdoctor.queries.lookup import training_models
from torchdoctor.schema import FixSpec, Recording, process

_LEAST = 0.1  # of the tokens


def refuses(recording: Recording) -> str | None:
    if not recording.infers:
        return "The program trains: the order of its samples is a part of it."
    models = training_models(recording)
    mixed = [(m.padding_share or 0.0) - (m.common_padding_share or 0.0) for m in models]
    if max(mixed, default=0.0) < _LEAST:
        return "Long and short rows share no batch."
    return None


_STEPS = {"boundary": {"kind": "forward", "learned_by": "forward"}}
_MODEL = {"ident": 0, "forwards": 9}
FIX: FixSpec = FixSpec(
    name="batches of like length",
    treats=("padded-tokens",),
    keeps_results="within rounding",
    untried="whether results may come in another order, only the program knows.",
    no_bound="How long the rows of later batches are was not recorded.",
    refuses=refuses,
    suits=lambda trace: False,
    instruction=lambda settings, recording: FIX.permanent_form,
    offers=[
        ({"steps": _STEPS, **process(models=[{**_MODEL, "padding_share": 0.4}])}, "sorted("),
    ],
    refusals=[
        ({}, "trains"),
        (
            {
                "steps": _STEPS,
                **process(models=[{**_MODEL, "padding_share": 0.4, "common_padding_share": 0.4}]),
            },
            "share no batch",
        ),
    ],
)
