"""Much of the traced step lies in no operator.

What it means
-------------
The host ran Python of the program, or it waited: a sleep, a file, a lock, another process. None of
that is the model's, and no compiler, optimizer or batch size makes it shorter by itself.

What to do
----------
Look at the function that is named, or record with `with_stack=True` where none is. Do the work
every so many steps (logging, metrics, checkpoints), in a thread or process beside the training, or
on whole tensors; take sleeps and waits for files out of the loop. `torchdoctor run` of the program
names the lines by their stacks.

How it is measured
------------------
From the profiler's trace: stretches of half a millisecond and longer in which no operator, driver
call, loader or collective runs, and on a GPU no kernel. With the trace's stacks (`with_stack=True`)
your functions are named that they passed in.

Not to be confused with
-----------------------
The microseconds of Python and dispatch between operators (python-overhead). A program that
`torchdoctor run` observes is asked by its own stacks instead (work-outside-model).
"""

from collections.abc import Iterator

from torchdoctor.words import CheckSpec, Location, PythonPlace, Recording, Symptom

THRESHOLD = 0.10
_HIGH = 0.30
_NAMED = 3
_SCRIPT = "<module>"
_LITTLE = 0.01  # of the step: a place that holds less is not named
_TOLD = 0.25  # of that time: places that hold less of it do not explain it


def _examine(recording: Recording) -> Iterator[Symptom]:
    trace = recording.trace
    if recording.steps is not None or trace is None or not trace.step_s:
        return
    share = min((trace.outside_s or 0.0) / trace.step_s, recording.shares.other or 0.0)
    if share < THRESHOLD:
        return
    ranked = sorted(trace.python_places, key=lambda one: one.other_s, reverse=True)
    told = [one for one in ranked if one.other_s >= _LITTLE * trace.step_s][:_NAMED]
    if sum(one.other_s for one in told) < _TOLD * share * trace.step_s:
        told = []
    location = None
    if told and told[0].function != _SCRIPT:
        location = Location(file=told[0].file, line=told[0].line, function=told[0].function)
    yield Symptom(
        share=share,
        evidence=_evidence(share, told, trace.step_s, bool(trace.python_places)),
        location=location,
        severity="high" if share >= _HIGH else "moderate",
    )


def _evidence(share: float, told: list[PythonPlace], step_s: float, stacks: bool) -> list[str]:
    if told:
        named = ", ".join(f"{_named(one)} ({one.other_s / step_s:.0%})" for one in told)
        return [
            f"{share:.0%} of the step lies in no operator.",
            f"It passes in {named}, what is called from there included.",
        ]
    what = "Python of the program, or waiting (sleep, input/output)"
    if stacks:
        return [
            f"{share:.0%} of the step lies in no operator: {what}; the stacks of the trace name "
            "none of your lines there."
        ]
    return [
        f"{share:.0%} of the step lies in no operator: {what}, which a trace without stacks does "
        "not tell apart.",
        "Record with_stack=True, or let `torchdoctor run` look.",
    ]


def _named(one: PythonPlace) -> str:
    """Of a script's own level the trace holds only the line that ran as the recording began."""
    if one.function == _SCRIPT:
        return f"{one.file} outside its functions"
    return f"{one.function} at {one.file}:{one.line}"


_TRACE = {"path": "t", "steps": 4, "step_s": 0.01, "python_s": 0.0097, "outside_s": 0.0096}
_PLACE = {"file": "train.py", "line": 12, "function": "main", "other_s": 0.0095}

CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="other",
    threshold=THRESHOLD,
    unit="% of the step",
    source="torchdoctor: a tenth of the step is worth a look",
    verdict="all",  # what a trace knows of it, and no more
    examine=_examine,
    fires=[
        {"shares": {"cpu": 0.04, "other": 0.96}, "steps": None, "trace": trace}
        for trace in (_TRACE, {**_TRACE, "python_places": [_PLACE]})
    ],
    quiet=[
        # Python between operators alone.
        {
            "shares": {"cpu": 1.0, "other": 0.0},
            "steps": None,
            "trace": {**_TRACE, "outside_s": 0.0},
        },
        # A kernel hides it.
        {
            "shares": {"gpu": 0.97, "other": 0.03},
            "steps": None,
            "trace": {**_TRACE, "has_device": True},
        },
        # A run knows its program's stacks.
        {
            "shares": {"cpu": 0.04, "other": 0.96},
            "steps": {"boundary": {"kind": "loader"}, "steps": 9, "mean_s": 0.01, "median_s": 0.01},
            "trace": _TRACE,
        },
    ],
)
