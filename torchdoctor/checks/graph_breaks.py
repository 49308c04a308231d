"""torch.compile captures the step in pieces: its graph breaks.

What it means
-------------
Where torch.compile meets what it cannot capture (a print, `.item()`, control flow on a tensor's
values, a call of a library), it ends the graph, runs that line by Python and goes on with another
graph. Nothing is fused across the break, and each piece costs guards and Python of its own. With
`mode="reduce-overhead"` each piece is a CUDA graph of its own.

What to do
----------
Take what breaks out of the compiled function: a print or log call to every so many steps of the
loop, `.item()` and branches on a tensor's values to tensor operations (torch.where, torch.cond), a
library's call behind `torch.compiler.disable`, so that the break is where you want it. Or compile
the blocks that have no break, one by one. `TORCH_LOGS=graph_breaks` shows each break with its
stack, and `fullgraph=True` keeps new ones out.

How it is measured
------------------
In the observing launch, from torch's own counters: each break with torch's reason and the line of
the program. In a trace with stacks: functions that torch makes of what follows a break
(`torch_dynamo_resume_in_..._at_LINE`).

Not to be confused with
-----------------------
Functions that torch.compile skips altogether, and those that are compiled again (recompilations).
A break that the program asks for (`torch._dynamo.graph_break()`, `torch.compiler.disable`).
"""

import re
from collections.abc import Iterator

from torchdoctor.facts.counts import counted
from torchdoctor.facts.lookup import place
from torchdoctor.words import CheckSpec, CompileReason, Location, Recording, Symptom

THRESHOLD = 1
_NAMED = 5
_ASKED_FOR = ("torch._dynamo.graph_break", "torch._dynamo.disable", "torch.compiler.disable")
_REMEDIES = (
    (
        r"\bprint\(|logging|logger",
        "Move the print or log call out of the forward, to every so many steps of the loop.",
    ),
    (
        r"\.item\(|\btolist\(|\bfloat\(|\bint\(",
        "Keep the value as a tensor; torch._dynamo.config.capture_scalar_outputs = True captures "
        ".item().",
    ),
    (
        r"data-dependent|data dependent|generic_jump|control flow",
        "Write a branch on a tensor's values as torch.where, or as torch.cond.",
    ),
)


def _examine(recording: Recording) -> Iterator[Symptom]:
    compiled, trace = recording.main.compilation, recording.trace
    if compiled is not None:
        breaks = [one for one in compiled.breaks if not _asked_for(one)]
        evidence, location = _counted(recording, breaks), _first(breaks)
    elif trace is not None and trace.compilation is not None:
        lines = trace.compilation.resumed
        evidence, location = _traced(recording, lines), lines[0] if lines else None
    else:
        return
    if not evidence:
        return
    yield Symptom(
        evidence=evidence,
        location=location,
        severity="moderate",
    )


def _asked_for(one: CompileReason) -> bool:
    return any(name in one.reason for name in _ASKED_FOR)


def _first(breaks: list[CompileReason]) -> Location | None:
    return next((one.location for one in breaks if one.location is not None), None)


def _counted(recording: Recording, breaks: list[CompileReason]) -> list[str]:
    compiled = recording.main.compilation
    if not breaks or compiled is None:
        return []
    evidence = [
        f"torch.compile breaks the graph at {counted(len(breaks), 'place')}; it made "
        f"{counted(compiled.graphs, 'graph')}."
    ]
    for one in breaks[:_NAMED]:
        where = place(recording, one.location, "")
        line = f" ({one.text})" if one.text else ""
        evidence.append(f"{where + ': ' if where else ''}{one.reason.rstrip('.')}{line}.")
    reasons = " ".join(f"{one.reason} {one.text}".lower() for one in breaks)
    remedies = [said for signs, said in _REMEDIES if re.search(signs, reasons)]
    return evidence + (remedies or ["TORCH_LOGS=graph_breaks shows each with its stack."])


def _traced(recording: Recording, lines: list[Location]) -> list[str]:
    if not lines:
        return []
    named = "; ".join(f"{place(recording, one, '')} in {one.function}" for one in lines[:_NAMED])
    return [
        f"torch.compile breaks the graph at {counted(len(lines), 'place')}: {named}.",
        "TORCH_LOGS=graph_breaks shows why; prints, .item() and branches on a tensor's values are "
        "the most frequent reasons.",
    ]


_PRINT = {
    "reason": "Failed to trace builtin operator",
    "text": 'print("seen")',
    "location": {"file": "/w/train.py", "line": 7, "function": "forward"},
}

CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="cpu",
    threshold=THRESHOLD,
    unit="graph break",
    source="PyTorch documentation (torch.compile): fullgraph=True is an error at any break",
    examine=_examine,
    fires=[
        {"processes": [{"pid": 1, "compilation": {"graphs": 2, "breaks": [_PRINT]}}]},
        {
            "trace": {
                "path": "t",
                "steps": 4,
                "compilation": {
                    "compiles_per_step": 0.0,
                    "compile_s": 0.0,
                    "steps_with": 0,
                    "regions_per_step": 2.0,
                    "resumed": [{"file": "train.py", "line": 7, "function": "forward"}],
                },
            }
        },
    ],
    quiet=[
        {"processes": [{"pid": 1, "compilation": {"graphs": 1}}]},
        {"processes": [{"pid": 1}]},
        {
            "processes": [
                {
                    "pid": 1,
                    "compilation": {
                        "graphs": 2,
                        "breaks": [{**_PRINT, "reason": "Call to `torch._dynamo.graph_break()`"}],
                    },
                }
            ]
        },
        {
            "trace": {
                "path": "t",
                "steps": 4,
                "compilation": {
                    "compiles_per_step": 0.0,
                    "compile_s": 0.0,
                    "steps_with": 0,
                    "regions_per_step": 1.0,
                },
            }
        },
    ],
)
