"""A batch that is handed out more than once, each time in containers of its own.

A program may take keys out of a batch or put some in; what it does to the tensors themselves shows
by the version that torch counts.
"""

import copy
from collections.abc import Mapping, MutableMapping

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_DEEPEST = 8


class Replayed:
    """A batch as it came, the `tensors` in its containers and objects, and their `shapes`."""

    def __init__(self, torch, batch):
        self._torch = torch
        self._batch = self._rebuilt(batch, 0)
        self.tensors = []
        self._find(batch, 0)
        self._versions = [tensor._version for tensor in self.tensors]
        self.shapes = [tuple(tensor.shape) for tensor in self.tensors]

    def is_changed(self):
        """Return whether the program wrote into one of its tensors."""
        return [tensor._version for tensor in self.tensors] != self._versions

    def again(self):
        """Return the batch: the same tensors in new containers."""
        return self._rebuilt(self._batch, 0)

    def is_longer_than(self, other):
        """Compare first dimensions alone; None: the shapes differ otherwise, or not at all."""
        if [shape[1:] for shape in self.shapes] != [shape[1:] for shape in other.shapes]:
            return None
        lengths = {(a[0], b[0]) for a, b in zip(self.shapes, other.shapes) if a}  # noqa: B905
        if len(lengths) != 1:
            return None
        [(ours, theirs)] = lengths
        return None if ours == theirs else ours > theirs

    def _rebuilt(self, value, depth):
        kind = type(value)
        if isinstance(value, (self._torch.Tensor, *_PLAIN)) or depth > _DEEPEST:
            return value
        if isinstance(value, tuple):
            parts = [self._rebuilt(part, depth + 1) for part in value]
            if kind is tuple:
                return tuple(parts)
            return kind(*parts) if hasattr(value, "_fields") else value
        if kind.__module__ == "numpy":
            return value
        new = copy.copy(value)
        if isinstance(value, MutableMapping):
            for key in list(value):
                new[key] = self._rebuilt(value[key], depth + 1)
        elif isinstance(value, list):
            new[:] = [self._rebuilt(part, depth + 1) for part in value]
        return new

    def _find(self, value, depth):
        if isinstance(value, self._torch.Tensor):
            self.tensors.append(value)
        if isinstance(value, (self._torch.Tensor, *_PLAIN)) or depth > _DEEPEST:
            return
        if isinstance(value, Mapping):
            value = value.values()
        elif not isinstance(value, (list, tuple)):
            plain = type(value).__module__ == "numpy"
            value = () if plain else list(getattr(value, "__dict__", {}).values())
        for part in value:
            self._find(part, depth + 1)
