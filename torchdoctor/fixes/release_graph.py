"""Let the graph of each step go: sum up and collect values, not losses with their graphs.

## What it does
Takes the graph off what is added to the sum, at the line that was seen to keep the graphs. A list
that keeps them can only be changed in the source: a trial has no way to know its `append`.

## Why it helps
`total += loss` makes `total` the end of one graph over all steps so far. Its nodes, and with
`retain_graph` or a loss that was never differentiated all their activations, stay in memory.

## Risks
Code that differentiates the sum later needs the graph, and would fail with a clear error.

## Make it permanent
    total += loss.detach()        # stays on the device; total.item() once at the end
    losses.append(loss.detach())

## Sources
- PyTorch, FAQ, "out of memory": https://docs.pytorch.org/docs/stable/notes/faq.html
"""

import os
from typing import Any

from torchdoctor.edits import DetachEdit
from torchdoctor.probe.hooks.analysis import ANALYSED_STEPS
from torchdoctor.queries.lookup import place
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, fact


def refuses(recording: Recording) -> Evidence | None:
    main = recording.main
    if main.analysed_steps < ANALYSED_STEPS:  # kept graphs are looked for at the last one
        return fact("graphs-unexamined")
    if not main.kept_graphs:
        return fact("no-kept-graphs")
    if main.flags.retain_graph:
        return fact("graphs-retained-on-purpose")
    return None


def settings(recording: Recording) -> list[Settings]:
    """Return the lines that add to a sum: those alone can be changed at run time."""
    graphs = [kept_graph for kept_graph in recording.main.kept_graphs if kept_graph.kind == "sum"]
    places = [
        [graph.location.file, graph.location.line] for graph in graphs if graph.location is not None
    ]
    return [{"lines": places}] if places else []


def apply(torch: Any, settings: Settings, program: Any) -> None:
    lines = {(os.path.realpath(file), line) for file, line in settings["lines"]}
    numbers = {line for _, line in lines}

    def make(old: Any) -> Any:
        def add(self: Any, *args: Any, **kwargs: Any) -> Any:
            frame = program.calling_frame()
            if frame is None:
                return old(self, *args, **kwargs)
            file = frame.f_code.co_filename
            line = frame.f_lineno
            if line not in numbers or (os.path.realpath(file), line) not in lines:
                return old(self, *args, **kwargs)
            program.applied()
            if old is in_place:
                with torch.no_grad():
                    return old(self.detach_() if self.grad_fn is not None else self, *args)
            return old(self, *args, **kwargs).detach()

        return add

    in_place = torch.Tensor.__iadd__
    program.set_reason("nothing-added")
    for name in ("__add__", "__radd__", "__iadd__"):
        program.replace(torch.Tensor, name, make)


def instruction(settings: Settings, recording: Recording) -> str:
    endings = {"sum": " += ....detach()  # or .item()"}
    endings["collection"] = ": keep ....detach(), or .item()"
    return "\n".join(
        f"{place(recording, graph.location, 'where it is kept')}  {graph.name}{endings[graph.kind]}"
        if graph.kind in endings
        else "detach() what is kept of each step's loss or output"
        for graph in recording.main.kept_graphs
    )


FIX = FixSpec(
    name="release each step's graph",
    treats=("kept-graphs",),
    keeps_results="exactly",
    p_helps=0.5,  # the graph is seen to be kept
    no_bound="What a kept graph costs grows from step to step: no usual step shows it.",
    refuses=refuses,
    sentences={
        "graphs-unexamined": "Earlier graphs were not looked for: that needs steps after the "
        "profiler window.",
        "no-kept-graphs": "No graph of an earlier step is kept.",
        "graphs-retained-on-purpose": "The program passes retain_graph=True: the graphs may be "
        "kept on purpose.",
        "nothing-added": "Nothing was added at the lines seen before.",
    },
    settings=settings,
    by_hand=lambda recording: not settings(recording),
    apply=apply,
    location=lambda recording: next(
        (kept_graph.location for kept_graph in recording.main.kept_graphs if kept_graph.location),
        None,
    ),
    instruction=instruction,
    edits=lambda _, recording: [
        DetachEdit(file=graph.location.file, line=graph.location.line, name=graph.name)
        for graph in recording.main.kept_graphs
        if graph.location is not None and graph.name is not None
    ],
    example=Example(
        code="""
model = torch.nn.Linear(4, 1)
total, kept = 0.0, torch.zeros(())
for _ in range(3):
    loss = model(torch.ones(2, 4)).sum() ** 0
    loss.backward()
    total += loss
    kept += loss
    other = loss + 1
print("sums:", float(total), float(kept))
print("graphs kept:", total.requires_grad, kept.requires_grad, "elsewhere:", other.requires_grad)
""",
        settings={"lines": [["example.py", 8], ["example.py", 9]]},
        without="sums: 3.0 3.0\ngraphs kept: True True elsewhere: True",
        with_fix="sums: 3.0 3.0\ngraphs kept: False False elsewhere: True",
    ),
)
