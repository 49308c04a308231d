"""Notes about tensors by identity, without keeping them alive.

A `weakref.WeakKeyDictionary` would compare its keys, which tensors do element by element.
"""

import weakref


class TensorNotes:
    """Tensor -> note; a note is forgotten with its tensor."""

    def __init__(self):
        self._notes = {}  # id -> (weak reference, note)

    def put(self, tensor, note):
        """Remember a note."""
        ident = id(tensor)
        self._notes[ident] = (weakref.ref(tensor, lambda _: self._notes.pop(ident, None)), note)

    def get(self, tensor):
        """The tensor's note, or None."""
        reference, note = self._notes.get(id(tensor), (None, None))
        # An id is used again when its owner has gone.
        return note if reference is not None and reference() is tensor else None
