"""torch.compile captures the step in pieces: its graph breaks.

## What it means
If torch.compile cannot capture a line (a print, `.item()`, control flow on a tensor's values, a
call of a library), it ends the graph, lets Python run the line and goes on with another graph.
Nothing is fused across the break, and each piece costs guards and Python of its own.

## What to do
Take what breaks out of the compiled function. Move prints and log calls to every so many steps of
the loop. Replace `.item()` and branches on a tensor's values by tensor operations (torch.where,
torch.cond). Put a library's call behind `torch.compiler.disable`, so that the break is where you
want it. Or compile the blocks that have no break, one by one. `TORCH_LOGS=graph_breaks` shows each
break with its stack, and `fullgraph=True` keeps new ones out.

## How it is measured
In the observing launch, torch's own counters give each break with its reason and line. In a trace
with stacks, the functions count that torch makes of the code after a break
(`torch_dynamo_resume_in_..._at_LINE`).

## Not to be confused with
Functions that torch.compile skips, or compiles again (recompilations). A break that is asked for
(`torch._dynamo.graph_break()`, `torch.compiler.disable`).
"""

from torchdoctor.facts.lookup import place, place_before
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, process, trace
from torchdoctor.words.figures import counted

_NAMED = 5
_ASKED_FOR = ("torch._dynamo.graph_break", "torch._dynamo.disable", "torch.compiler.disable")
_ADVICE = (
    "TORCH_LOGS=graph_breaks shows why; prints, .item() and branches on a tensor's values are the "
    "most frequent reasons."
)


def _examine(recording: Recording) -> Symptoms:
    compiled = recording.main.compilation
    if compiled is None:  # a run's own counters know more than a trace
        yield from _of_trace(recording)
        return
    breaks = [b for b in compiled.breaks if not any(name in b.reason for name in _ASKED_FOR)]
    if not breaks:
        return
    lines = [
        f"{place_before(recording, each.location)}{each.reason.rstrip('.')}"
        f"{f' ({each.text})' if each.text else ''}."
        for each in breaks[:_NAMED]
    ]
    yield Symptom(
        evidence=[
            f"torch.compile breaks the graph at {counted(len(breaks), 'place')}; it made "
            f"{counted(compiled.graphs, 'graph')}.",
            *lines,
            _ADVICE,
        ],
        location=next((each.location for each in breaks if each.location is not None), None),
        severity="moderate",
    )


def _of_trace(recording: Recording) -> Symptoms:
    compiled = recording.trace.compilation if recording.trace is not None else None
    if compiled is None or not compiled.resumed:
        return
    lines = compiled.resumed
    named = "; ".join(f"{place(recording, line)} in {line.function}" for line in lines[:_NAMED])
    yield Symptom(
        evidence=[
            f"torch.compile breaks the graph at {counted(len(lines), 'place')}: {named}.",
            _ADVICE,
        ],
        location=lines[0],
        severity="moderate",
    )


_PRINT = {"reason": "Failed to trace builtin operator", "text": 'print("seen")'}
_ASKED = {**_PRINT, "reason": "Call to `torch._dynamo.graph_break()`"}
_TRACED = {"compiles_per_step": 0.0, "compile_s": 0.0, "steps_with": 0}
_LINE = {"file": "train.py", "line": 7, "function": "forward"}
CHECK = CheckSpec(
    branch="cpu",
    threshold=1,
    unit="graph break",
    source="PyTorch documentation (torch.compile): fullgraph=True is an error at any break",
    examine=_examine,
    fires=[
        process(compilation={"graphs": 2, "breaks": [{**_PRINT, "location": _LINE}]}),
        trace(compilation={**_TRACED, "resumed": [_LINE]}),
    ],
    quiet=[process(compilation={"graphs": 2, "breaks": [_ASKED]}), trace(compilation=_TRACED)],
)
