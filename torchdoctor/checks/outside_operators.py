"""Much of the traced step lies in no operator.

## What it means
The host ran Python of the program, or it waited: a sleep, a file, a lock, another process. This
time is not the model's, and no compiler, optimizer or batch size makes it shorter by itself.

## What to do
Do the work of the named function in a thread or process beside the model, every so many steps
(logging, metrics, checkpoints), or on whole tensors. If none is named, record `with_stack=True`.

## How it is measured
The check adds up stretches of the trace of at least half a millisecond in which no operator, driver
call, loader or collective runs, and on a GPU no kernel. If the trace has stacks
(`with_stack=True`), the finding names your functions in that time and what they call longest.

## Not to be confused with
The microseconds of Python and dispatch between operators (python-overhead). A program that
`torchdoctor run` observes has stacks of its own instead (work-outside-model).
"""

from typing import Any

from torchdoctor.queries.lookup import at, working_python_s
from torchdoctor.schema import (
    CheckSpec,
    Evidence,
    Location,
    PythonCall,
    PythonPlace,
    Recording,
    Symptom,
    Symptoms,
    fact,
    trace,
)

_HIGH = 0.30
_NAMED = 3
_SCRIPT = "<module>"
_LITTLE = 0.01  # of the step: a place that holds less is not named
_MOSTLY = 0.5  # of that time: so much of it works, by the stacks, and does not wait
_EXPLAINED = 0.25  # of that time: places that hold less of it do not explain it


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    if recording.steps is not None or traced is None or not traced.step_s:
        return
    share = min((traced.outside_s or 0.0) / traced.step_s, recording.shares.other or 0.0)
    if share < CHECK.threshold:
        return
    ranked = sorted(traced.python_places, key=lambda place: place.other_s, reverse=True)
    places = [place for place in ranked if place.other_s >= _LITTLE * traced.step_s][:_NAMED]
    evidence = [fact("no-operator", share=share)]
    location = None
    if sum(place.other_s for place in places) >= _EXPLAINED * share * traced.step_s:
        named = [_named(place, place.other_s / traced.step_s) for place in places]
        top = places[0]
        first = None if top.function == _SCRIPT else at(top)
        evidence.append(fact("passes-in", location=first, places=named))
        if traced.has_device and working_python_s(traced) >= _MOSTLY * share * traced.step_s:
            calls = [_named(call, call.host_s / traced.step_s) for call in top.calls[:_NAMED]]
            evidence = _of_python(share, first, named, calls)
        location = first
    else:
        unknown = "lines-unknown" if traced.python_places else "no-stacks"
        evidence = [fact(unknown, share=share)]
        if not traced.python_places:
            evidence.append(fact("record-stacks"))
    yield Symptom(
        share=share,
        evidence=evidence,
        location=location,
        severity="high" if share >= _HIGH else "moderate",
    )


def _of_python(
    share: float,
    first: Location | None,
    named: list[dict[str, Any]],
    calls: list[dict[str, Any]],
) -> list[Evidence]:
    """Return what says that Python works there, in these calls of these places."""
    where = calls or named
    called = calls[0] if calls else None
    place = first
    if called is not None:
        place = Location(file=called["file"], line=called["line"]) if called["function"] else None
    evidence = [fact("python", share=share, location=place, places=where)]
    if calls and calls != named:
        evidence.append(fact("called-from", location=first, places=named))
    return [*evidence, fact("do-it-elsewhere")]


def _named(place: PythonPlace | PythonCall, share: float) -> dict[str, Any]:
    # Of a script's own level the trace holds only the line that ran as the recording began.
    own_level = place.function == _SCRIPT
    return {
        "function": None if own_level else place.function,
        "file": place.file,
        "line": None if own_level else place.line,
        "own_level": "outside its functions" if own_level else None,
        "of_step": share,
    }


_TRACED = {"python_s": 0.097, "outside_s": 0.096}
_PLACE = {"file": "train.py", "line": 12, "function": "main", "other_s": 0.095}
_OUTSIDE = {"shares": {"cpu": 0.04, "other": 0.96}, "steps": None, **trace(**_TRACED)}
CHECK = CheckSpec(
    branch="other",
    threshold=0.10,
    unit="% of the step",
    source="torchdoctor: a tenth of the step is worth a look",
    verdict="all",  # what a trace knows of it, and no more
    sentences={
        "no-operator": "{share:.0%} of {the_step} lies in no operator.",
        "passes-in": "It passes in {places:each place}, what is called from there included.",
        "place": "[{function} at ]{file:path}[:{line}][ {own_level}] ({of_step:.0%})",
        "python": "Python outside any operator takes {share:.0%} of {the_step}: {places:each "
        "place}.",
        "called-from": "It is called from {places:each place}.",
        "do-it-elsewhere": "Do it in other processes (workers of a DataLoader) or ahead of the "
        "model, while the {device} computes.",
        "lines-unknown": "{share:.0%} of {the_step} lies in no operator: Python of the program, "
        "or waiting (sleep, input/output); the stacks of the trace name none of your lines there.",
        "no-stacks": "{share:.0%} of {the_step} lies in no operator: Python of the program, or "
        "waiting (sleep, input/output), which a trace without stacks does not tell apart.",
        "record-stacks": "Record with_stack=True, or let `torchdoctor run` look.",
    },
    examine=_examine,
    fires=[_OUTSIDE, {**_OUTSIDE, **trace(**_TRACED, python_places=[_PLACE])}],
    quiet=[
        # Python between operators alone.
        {**_OUTSIDE, "shares": {"cpu": 1.0, "other": 0.0}, **trace(outside_s=0.0)},
        # A kernel hides it.
        {**_OUTSIDE, "shares": {"gpu": 0.97, "other": 0.03}, **trace(**_TRACED, has_device=True)},
        # A run knows its program's stacks.
        {"shares": _OUTSIDE["shares"], **trace(**_TRACED)},
    ],
)
