"""Gradients are set to zero instead of None.

## What it means
zero_grad(set_to_none=False) fills every gradient with zeros, to which the next backward adds.

## How it is measured
The probe counts calls with set_to_none=False and notes the line of the first.

## Not to be confused with
The default since torch 2.0, which is None.
"""

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    flags = recording.main.flags
    if flags.zero_grad_to_zero >= CHECK.threshold:
        yield Symptom(
            evidence=fact("called", calls=flags.zero_grad_to_zero),
            location=flags.zero_grad_location,
            severity="advice",
        )


CHECK = CheckSpec(
    branch="cpu",
    threshold=1,
    unit="call of zero_grad(set_to_none=False)",
    source="PyTorch Performance Tuning Guide",
    sentences={
        "called": "zero_grad(set_to_none=False) was called {calls:counted time}.",
    },
    examine=_examine,
    fires=[process(flags={"zero_grad_to_zero": 30})],
    quiet=[process(flags={"zero_grad_to_zero": 0})],
)
