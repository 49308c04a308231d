"""A loop in Python goes through many small pieces within each step.

## What it means
Each turn pays for Python and for handing out operators, whatever their size: microseconds for what
one operator over all pieces does in nanoseconds. Loops over rows, time steps, boxes or parameters
are the usual ones.

## What to do
Compute on the whole tensor: broadcasting, `torch.where`, an index tensor, `torch.bmm`,
`scatter_add` or `torch._foreach_*` over a list of tensors. Where a turn needs the one before it,
`cumsum`, the recurrent layers or `torch.compile` may do.

## How it is measured
Sampled stacks of the main thread: lines within a loop of their function, beyond the training loop
itself, among all samples of the steps. It counts where operators under 50 microseconds and Python
make up at least half of that. Its share is the most that can be gained.

## Not to be confused with
A loop over layers or blocks, whose operators are large. Single elements that are read or written
one by one, each with its number of turns: index-loops.
"""

from torchdoctor.queries.hot_calls import SampledCode
from torchdoctor.queries.loops import inner_loops
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process, trace

_NAMED = 2


def _examine(recording: Recording) -> Symptoms:
    for loop in inner_loops(recording)[:_NAMED]:
        if loop.share < CHECK.threshold:
            continue
        evidence = fact(
            "loop",
            share=loop.share,
            location=loop.location,
            function=loop.location.function,
            text=loop.text,
            operators=_operators(recording, loop),
        )
        yield Symptom(share=loop.share, evidence=evidence, location=loop.location)


def _operators(recording: Recording, loop: SampledCode) -> float | None:
    """Return the operators of a step; None: the loop is in the loader, whose are not counted."""
    if recording.trace is None or "loader" in loop.phases:
        return None
    return recording.trace.operator_calls_per_step


_ROW = {
    "location": {"file": "/w/train.py", "line": 12, "function": "penalty"},
    "phase": "forward",
    "count": 40,
    "loops": 1,
    "text": "total = total + w[i] * x[i].sum()",
    "leaf_file": "w/train.py",
    "leaf_function": "penalty",
}
_LOOP = {
    "location": {"file": "/w/train.py", "line": 40, "function": "main"},
    "phase": "backward",
    "count": 60,
    "loops": 2,
}
_CPU = {"shares": {"cpu": 1.0}}
_CALLED = {"ident": 0, "forwards": 9, "call": {"name": "model", "location": _ROW["location"]}}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.10,
    unit="% of the step",
    source="torchdoctor: a tenth of the step is worth a look",
    sentences={
        "loop": "A loop in {function} takes {share:.0%} of {each_step}, most often at "
        "{location:place}[ ({text})].[ {operators:.0f} operators run in {each_step}.]",
    },
    examine=_examine,
    fires=[
        process(stacks=[_ROW, _LOOP]),
        {
            **_CPU,
            **trace(python_s=0.03, small_operator_s=0.04, operator_calls_per_step=900.0),
            **process(
                stacks=[
                    {**_ROW, "leaf_file": "torch/nn/functional.py", "leaf_function": "relu"},
                    _LOOP,
                ]
            ),
        },
    ],
    quiet=[
        process(stacks=[{**_ROW, "loops": 0}, _LOOP]),
        process(
            stacks=[
                {**_ROW, "leaf_file": "torch/nn/functional.py", "leaf_function": "linear"},
                _LOOP,
            ]
        ),
        process(stacks=[{**_ROW, "count": 3}, _LOOP]),
        process(stacks=[{**_ROW, "location": _LOOP["location"], "loops": 2}, _LOOP]),
        {  # the loop over requests
            "steps": {"boundary": {"kind": "forward", "learned_by": "forward"}},
            **process(stacks=[_ROW], models=[_CALLED]),
        },
    ],
)
