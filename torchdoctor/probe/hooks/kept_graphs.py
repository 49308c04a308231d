"""Graphs of earlier steps that something still holds: what, and the line that keeps it.

Each backward's graph is marked with its step; at the end those of live tensors are walked.
"""

import ast
import gc
import linecache
import sys
from collections import deque

from .. import places
from ..wrapping import before, wrap
from .tensor_calls import TensorNotes

_MOST_NODES = 100_000
_MARK = "torchdoctor_step"
_OLD_STEPS = 3  # of so many earlier steps at least, or it is no leak
_SUMS = ("__add__", "__radd__", "__iadd__")
_KEEPS = ("append", "extend", "appendleft", "add")


class KeptGraphs:
    """Marks graphs while `on`, and looks once at the end."""

    def __init__(self, session):
        self._session = session
        self._torch = session.torch
        self._summed = TensorNotes()  # result -> the user's line that added
        self._rows = []
        self.on = False
        self.step = 0

    def start(self):
        """Mark from now on."""
        for name in _SUMS:
            wrap(self._torch.Tensor, name, self._noting_sums)
        before(self._session, self._torch.autograd, "backward", self._mark)
        self.on = True

    def _noting_sums(self, old):
        def function(tensor, *args, **kwargs):
            result = old(tensor, *args, **kwargs)
            if self.on and getattr(result, "requires_grad", False):
                caller = sys._getframe(1)
                if places.is_users(caller.f_code.co_filename):
                    self._summed.put(result, places.of_frame(caller))
            return result

        return function

    def _mark(self, tensors, *args, **kwargs):
        if not self.on:
            return
        roots = tensors if isinstance(tensors, (tuple, list)) else [tensors]
        nodes = [t.grad_fn for t in roots if getattr(t, "grad_fn", None) is not None]
        for node in _reachable(nodes):
            node.metadata.setdefault(_MARK, self.step)

    def stop(self):
        """Find what holds the graphs of earlier steps; called at the last boundary."""
        if not self.on:
            return
        self.on = False
        frames = list(places.users_frames(sys._getframe(1)))
        tensor_class = self._torch.Tensor
        tensors = [
            tracked for tracked in gc.get_objects() if issubclass(type(tracked), tensor_class)
        ]
        held = [tensor for tensor in tensors if _graph_of(tensor) is not None]
        holders = {}
        for tensor in held:
            marks = (n.metadata.get(_MARK, self.step) for n in _reachable([tensor.grad_fn]))
            old = [step for step in marks if step < self.step - 1]
            if old:
                name, kind, where = self._holder(frames, tensor, held)
                steps, _ = holders.setdefault((name, kind), ([], where))
                steps += old
        for (name, kind), (steps, where) in holders.items():
            if len(set(steps)) >= _OLD_STEPS:
                row = {"name": name, "kind": kind, "location": where}
                row["nodes_per_step"] = len(steps) / len(set(steps))
                row["text"] = places.text_at(where)
                self._rows.append(row)

    def _holder(self, frames, tensor, held):
        """Return the name that holds it in a user's frame, "sum" or "collection", and the line."""
        for frame in frames:
            name = places.name_of(frame, tensor)
            if name is not None:
                return name, "sum", self._summed.get(tensor)
            for owner in gc.get_referrers(tensor):
                collection = type(owner) in (list, deque, set, dict) and owner is not held
                name = places.name_of(frame, owner) if collection else None
                if name is not None:
                    return name, "collection", _line_that_keeps(frame, name)
        return None, "unknown", None

    def facts(self):
        """Return `kept_graphs` of the process facts."""
        return {"kept_graphs": self._rows}


def _graph_of(tensor):
    try:
        return tensor.grad_fn
    except Exception:  # a subclass of the user's may forbid it
        return None


def _reachable(nodes):
    """Return nodes of autograd graphs, but for parameters', which live as long as the model."""
    reached = set()
    waiting = list(nodes)
    while waiting and len(reached) < _MOST_NODES:
        node = waiting.pop()
        if node in reached or type(node).__name__ == "AccumulateGrad":
            continue
        reached.add(node)
        waiting.extend(n for n, _ in node.next_functions if n is not None)
    return reached


def _line_that_keeps(frame, name):
    """Return the line of this function that puts something into the collection of this name."""
    file = frame.f_code.co_filename
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and hasattr(node.func, "attr")
    ]
    puts = [
        call for call in calls if call.func.attr in _KEEPS and ast.unparse(call.func.value) == name
    ]
    lines = {node.lineno for node in puts}
    return None if len(lines) != 1 else places.of_line(file, lines.pop(), frame.f_code.co_name)
