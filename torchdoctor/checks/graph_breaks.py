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

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process, trace

_NAMED = 5
_ASKED_FOR = ("torch._dynamo.graph_break", "torch._dynamo.disable", "torch.compiler.disable")


def _examine(recording: Recording) -> Symptoms:
    compiled = recording.main.compilation
    if compiled is None:  # a run's own counters know more than a trace
        yield from _of_trace(recording)
        return
    breaks = [b for b in compiled.breaks if not any(name in b.reason for name in _ASKED_FOR)]
    if not breaks:
        return
    lines = [
        fact(
            "break",
            location=each.location,
            reason=each.reason.rstrip("."),
            text=each.text or None,
        )
        for each in breaks[:_NAMED]
    ]
    yield Symptom(
        evidence=[
            fact("breaks", places=len(breaks), graphs=compiled.graphs),
            *lines,
            fact("see-why"),
        ],
        location=next((each.location for each in breaks if each.location is not None), None),
        severity="moderate",
    )


def _of_trace(recording: Recording) -> Symptoms:
    compiled = recording.trace.compilation if recording.trace is not None else None
    if compiled is None or not compiled.resumed:
        return
    lines = compiled.resumed
    named = [
        {"file": line.file, "line": line.line, "function": line.function} for line in lines[:_NAMED]
    ]
    yield Symptom(
        evidence=[
            fact("breaks-at", location=lines[0], places=len(lines), lines=named),
            fact("see-why"),
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
    sentences={
        "breaks": "torch.compile breaks the graph at {places:counted place}; it made "
        "{graphs:counted graph}.",
        "break": "[{location:place}: ]{reason}[ ({text})].",
        "breaks-at": "torch.compile breaks the graph at {places:counted place}: {lines:each "
        "line|; }.",
        "line": "{file:path}:{line} in {function}",
        "see-why": "TORCH_LOGS=graph_breaks shows why; prints, .item() and branches on a tensor's "
        "values are the most frequent reasons.",
    },
    examine=_examine,
    fires=[
        process(compilation={"graphs": 2, "breaks": [{**_PRINT, "location": _LINE}]}),
        trace(compilation={**_TRACED, "resumed": [_LINE]}),
    ],
    quiet=[process(compilation={"graphs": 2, "breaks": [_ASKED]}), trace(compilation=_TRACED)],
)
