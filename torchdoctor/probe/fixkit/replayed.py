"""A batch that is handed out more than once, each time in containers of its own.

A program may take keys out of a batch or put some in; what it does to the tensors themselves shows
by the version that torch counts.
"""

import copy
from collections.abc import Mapping

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_DEEPEST = 8


class Replayed:
    """A batch as it came, the `tensors` in its containers and objects, and their `shapes`."""

    def __init__(self, torch, batch):
        self._torch = torch
        self.tensors = []
        self._same = {}  # what a copy of the batch holds itself: tensors and arrays, by id
        self._find(batch, 0)
        self._batch = self._copied(batch)
        self._versions = [tensor._version for tensor in self.tensors]
        self.shapes = [tuple(tensor.shape) for tensor in self.tensors]

    def is_changed(self):
        """Return whether the program wrote into one of its tensors."""
        return [tensor._version for tensor in self.tensors] != self._versions

    def again(self):
        """Return the batch: the same tensors in new containers."""
        return self._copied(self._batch)

    def _copied(self, batch):
        return copy.deepcopy(batch, dict(self._same))

    def is_longer_than(self, other):
        """Compare first dimensions alone; None: the shapes differ otherwise, or not at all."""
        if [shape[1:] for shape in self.shapes] != [shape[1:] for shape in other.shapes]:
            return None
        lengths = {(a[0], b[0]) for a, b in zip(self.shapes, other.shapes) if a}  # noqa: B905
        if len(lengths) != 1:
            return None
        [(ours, theirs)] = lengths
        return None if ours == theirs else ours > theirs

    def _find(self, value, depth):
        is_tensor = isinstance(value, self._torch.Tensor)
        if is_tensor:
            self.tensors.append(value)
        if is_tensor or type(value).__module__ == "numpy":
            self._same[id(value)] = value
            return
        if isinstance(value, _PLAIN) or depth > _DEEPEST:
            return
        if isinstance(value, Mapping):
            value = value.values()
        elif not isinstance(value, (list, tuple)):
            value = list(getattr(value, "__dict__", {}).values())
        for part in value:
            self._find(part, depth + 1)
