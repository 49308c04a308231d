"""The gradient of a large embedding is a tensor of its whole table.

## What it means
A step reads a few rows of the table, and its gradient is zeros everywhere else. Writing these
zeros, and an optimizer that goes through all of them, may take most of the step.

## How it is measured
The trace has the backward of an embedding; the share is that of the operators that write its
gradient and fill memory. The optimizer's pass over the whole table comes on top.

## Not to be confused with
Gradients that zero_grad clears (zero-grad-to-zero). A table that is tied to the output layer, whose
gradient is dense by nature.
"""

import re

from torchdoctor.queries.lookup import spent_s, training_models
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process, trace

_BACKWARD = "aten::embedding_dense_backward"
_WRITES = re.compile(rf"{_BACKWARD}|aten::(zero_|fill_|(new_)?zeros)")


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    lines = [line for model in training_models(recording) for line in model.dense_embeddings]
    if traced is None or not traced.step_s or not lines:
        return
    if not any(operator.name == _BACKWARD for operator in traced.operators):
        return
    writes_s = sum(
        spent_s(operator) for operator in traced.operators if _WRITES.fullmatch(operator.name)
    )
    share = min(writes_s / traced.step_s, 1.0)
    if share >= CHECK.threshold:
        yield Symptom(
            share=share,
            evidence=fact("dense-gradients", share=share),
            location=lines[0],
        )


_TABLE = {"file": "/w/train.py", "line": 12}
_MODEL = {"ident": 0, "forwards": 9, "dense_embeddings": [_TABLE]}
_DENSE = trace(operators=[{"name": _BACKWARD, "calls_per_step": 2.0, "self_s": 0.03}])
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor: as for memory that is filled",
    sentences={
        "dense-gradients": "Writing dense gradients of whole embedding tables takes {share:.0%} of "
        "{each_step}, and the optimizer goes through them again.",
    },
    examine=_examine,
    fires=[{**_DENSE, **process(models=[_MODEL])}],
    quiet=[_DENSE, {**trace(operators=[]), **process(models=[_MODEL])}],
)
