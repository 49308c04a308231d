"""The program does work of its own between the passes of the model.

## What it means
Metrics in Python, checkpoints, logging, plots and the environment of reinforcement learning run in
the loop outside forward, backward and optimizer, and the device (or the CPU's arithmetic) waits.

## What to do
Do at the named lines every so many steps what only reports, and keep what they compute again.
Compute metrics on whole tensors, log and save less often or in a thread, plot after training. Step
an environment in processes of its own, several at once. Start work that does not depend on this
step's result before the first `.item()` or print that waits for the GPU, so that it runs while the
GPU computes.

## How it is measured
The share is the step's time that is neither data loading nor copies nor any operator nor phase of
the model. Sampled stacks of the main thread name your functions in that time; a library's work
counts for your line that called it.

## Not to be confused with
Batches prepared in the loop (inline-batch-preparation), Python in the forward (python-overhead).
"""

from typing import Any

from torchdoctor.queries.analysed import calls_of
from torchdoctor.queries.stacks import Place, by_function, rows_showing, updates_by_hand
from torchdoctor.schema import CheckSpec, Recording, StackSample, Symptom, Symptoms, fact, process
from torchdoctor.schema.figures import source_line

_NAMED = 3
_SHOWN = 50  # characters of a line


def _examine(recording: Recording) -> Symptoms:
    outside = recording.shares.other
    waits = [tensor_call.location for tensor_call in calls_of(recording, "wait")]
    rows = rows_showing(recording, "outside", "updates")
    rows = [row for row in rows if row.location not in waits or not _waits_in_torch(row)]
    if outside is None or not rows:
        return
    samples = sum(row.count for row in recording.main.stacks)
    share = min(sum(row.count for row in rows) / samples, outside)
    if share < CHECK.threshold:
        return
    ranked = by_function(rows)
    top = ranked[0].top.location
    evidence = [
        fact("outside", share=share),
        fact("places", location=top, places=_named(ranked)),
    ]
    if any(updates_by_hand(recording, row) for row in ranked[0].rows):
        evidence.append(fact("no-optimizer"))
    yield Symptom(
        share=share,
        evidence=evidence,
        location=top,
        severity="high" if share >= 0.3 else "moderate",
    )


def _waits_in_torch(row: StackSample) -> bool:
    # What is written in C has no frame: the line itself is the innermost.
    return "torch/" in row.leaf_file or row.location.file.endswith(row.leaf_file)


def _named(ranked: list[Place]) -> list[dict[str, Any]]:
    """Return the functions that most samples lie in, with their lines and shares of these."""
    total = sum(function.count for function in ranked)
    return [
        {
            "function": at.function if at.function not in ("", "<module>") else None,
            "file": at.file,
            "line": at.line,
            "samples": function.count / total,
            "text": source_line(function.top.text, _SHOWN),
        }
        for function in ranked[:_NAMED]
        for at in [function.top.location]
    ]


_ROW: dict[str, Any] = {
    "location": {"file": "/w/train.py", "line": 12, "function": "accuracy"},
    "phase": "after_step",
    "count": 30,
    "leaf_file": "w/train.py",
    "leaf_function": "accuracy",
    "text": "hits += arg == t.item()",
}
_UPDATE = {**_ROW, "phase": "after_backward", "text": "p -= 0.01 * g"}
_TRANSFORM = {
    **_ROW,
    "phase": "other",
    "leaf_file": "torch/_functorch/apis.py",
    "leaf_function": "wrapper",
}


def _sampled(row: dict[str, Any]) -> dict[str, Any]:
    model = {**_ROW, "phase": "backward", "count": 70, "text": "loss.backward()"}
    return {"shares": {"cpu": 0.7, "other": 0.3}, **process(stacks=[row, model])}


CHECK = CheckSpec(
    branch="other",
    threshold=0.10,
    unit="% of the step",
    source="torchdoctor: a tenth of the step is worth a look",
    verdict="last",  # the verdict has named the share
    opens_verdict=True,
    sentences={
        "outside": "{share:.0%} of {each_step} passes outside data loading and the model.",
        "places": "There it was in {places:each place}.",
        "place": "[{function} at ]{file:path}:{line} ({samples:.0%}[: {text}])",
        "no-optimizer": "No optimizer steps: where this is the update of the weights, torch.optim "
        "makes it in a few operators for all of them (foreach=True, fused=True).",
    },
    examine=_examine,
    fires=[_sampled(_ROW), _sampled(_UPDATE)],
    quiet=[
        _sampled({**_ROW, "leaf_file": "lib/python3.11/threading.py", "leaf_function": "join"}),
        _sampled(_TRANSFORM),
        _sampled({**_ROW, "phase": "other", "text": "loss = f(x)"}),
    ],
)
