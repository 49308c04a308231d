"""Let the graph of each step go: sum up and collect values, not losses with their graphs.

What it does
------------
Takes the graph off what is added to the sum, at the line that was seen to keep the graphs. A list
that keeps them can only be changed in the source: a trial has no way to know its `append`.

Why it helps
------------
`total += loss` makes `total` the end of one graph over all steps so far. Its nodes, and with
`retain_graph` or a loss that was never differentiated all their activations, stay in memory.
Memory grows until the program is killed; Python's garbage collector and the allocator slow down.

Risks
-----
None for a sum or list that is only looked at. Code that differentiates the sum later needs the
graph, and would fail with a clear error.

Make it permanent
-----------------
    total += loss.detach()        # stays on the device; total.item() once at the end
    losses.append(loss.detach())

Sources
-------
- PyTorch documentation, FAQ, "My model reports cuda runtime error(2): out of memory" (don't
  accumulate history across your training loop):
  https://docs.pytorch.org/docs/stable/notes/faq.html
"""

from __future__ import annotations

import os
import sys
from typing import Any

from torchdoctor.edits import DetachEdit, Edit
from torchdoctor.facts.analysed import summed_graphs
from torchdoctor.facts.lookup import place
from torchdoctor.probe.hooks.analysis import ANALYSED_STEPS
from torchdoctor.words import KeptGraph, Location, Recording
from torchdoctor.words.specs import Example, FixSpec


def refuses(recording: Recording) -> str | None:
    """Return why there is nothing to release."""
    main = recording.main
    if main.analysed_steps < ANALYSED_STEPS:  # kept graphs are looked for at the last one
        return (
            "Graphs of earlier steps were not looked for: "
            "that needs steps after the profiler window."
        )
    if not main.kept_graphs:
        return "No graph of an earlier step is kept."
    if main.flags.retain_graph:
        return (
            "The program differentiates with retain_graph=True: the graphs may be kept on purpose."
        )
    return None


def _sums(recording: Recording) -> list[KeptGraph]:
    return summed_graphs(recording)


def by_hand(recording: Recording) -> bool:
    """Return True if nothing of it can be changed at run time."""
    return not _sums(recording)


def settings(recording: Recording) -> list[dict[str, Any]]:
    """Return the lines that add to a sum."""
    places = [
        [graph.location.file, graph.location.line]
        for graph in _sums(recording)
        if graph.location is not None
    ]
    return [{"lines": places}] if places else []


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Detach what these lines' additions give."""
    lines = {(os.path.realpath(file), line) for file, line in settings["lines"]}
    numbers = {line for _, line in lines}

    def make(old: Any) -> Any:
        def add(self: Any, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            if frame.f_lineno not in numbers:
                return old(self, *args, **kwargs)
            where = os.path.realpath(frame.f_code.co_filename), frame.f_lineno
            if where not in lines:
                return old(self, *args, **kwargs)
            program.applied()
            if old is in_place:
                with torch.no_grad():
                    return old(self.detach_() if self.grad_fn is not None else self, *args)
            return old(self, *args, **kwargs).detach()

        return add

    in_place = torch.Tensor.__iadd__
    program.set_reason("Nothing was added at the lines seen before.")
    for name in ("__add__", "__radd__", "__iadd__"):
        program.replace(torch.Tensor, name, make)


def location(recording: Recording) -> Location | None:
    """Return the line that keeps a graph."""
    return next((x.location for x in recording.main.kept_graphs if x.location), None)


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """Return what to write at each line."""
    lines = []
    for graph in recording.main.kept_graphs:
        where = place(recording, graph.location, "where it is kept")
        if graph.kind == "sum":
            lines.append(f"{where}  {graph.name} += ....detach()  # or .item()")
        elif graph.kind == "collection":
            lines.append(f"{where}  {graph.name}: keep ....detach(), or .item()")
        else:
            lines.append("detach() what is kept of each step's loss or output")
    return "\n".join(lines)


def edits(settings: dict[str, Any], recording: Recording) -> list[Edit]:
    """Return `.detach()` at the lines that are known."""
    return [
        DetachEdit(file=graph.location.file, line=graph.location.line, name=graph.name)
        for graph in recording.main.kept_graphs
        if graph.location is not None and graph.name is not None
    ]


FIX = FixSpec(
    file=__file__,
    page=__doc__,
    treats=("kept-graphs",),
    keeps_results="exactly",
    when="launch",
    p_helps=0.5,  # the graph is seen to be kept
    refuses=refuses,
    settings=settings,
    by_hand=by_hand,
    apply=apply,
    location=location,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
import torch

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
        settings={"lines": [["example.py", 9], ["example.py", 10]]},
        without="""sums: 3.0 3.0
graphs kept: True True elsewhere: True""",
        with_fix="""sums: 3.0 3.0
graphs kept: False False elsewhere: True""",
    ),
)
