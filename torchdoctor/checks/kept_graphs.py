"""The graphs of earlier steps are kept alive.

## What it means
The program sums up, or puts into a list, a loss or an output that still requires a gradient. The
autograd graph of its step hangs on it and is never freed: memory and the allocator's work grow.

## How it is measured
In a few steps after the profiler window, which are in no timing, torchdoctor marks the graph of
each backward pass with its step. A value that still leads to the marks of at least three earlier
steps keeps them; torchdoctor looks up its name and line in the training loop.

## Not to be confused with
A hidden state that is carried on without `detach()`: its backward pass fails by itself. The last
step's loss, which lives until the next one replaces it.
"""

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    kept = recording.main.kept_graphs
    if kept:
        yield Symptom(
            evidence=[
                fact(
                    "kept" if graph.name else "kept-unnamed",
                    location=graph.location,
                    name=graph.name,
                    nodes=graph.nodes_per_step,
                )
                for graph in kept
            ],
            location=next((graph.location for graph in kept if graph.location), None),
            severity="moderate",
        )


_KEPT = {"kind": "sum", "name": "total", "nodes_per_step": 30.0}
CHECK = CheckSpec(
    branch="other",
    threshold=3,
    unit="graphs of earlier steps that are kept",
    source="torchdoctor: graphs of earlier steps; a loop that frees them keeps at most one",
    sentences={
        "kept": "[{location:place}: ]{name!r} keeps {nodes:.0f} nodes of the autograd graph of "
        "every step.",
        "kept-unnamed": "[{location:place}: ]Something that the training loop does not name keeps "
        "{nodes:.0f} nodes of the autograd graph of every step.",
    },
    examine=_examine,
    fires=[process(kept_graphs=[_KEPT]), process(kept_graphs=[{"kind": "unknown"}])],
    quiet=[process(kept_graphs=[])],
)
