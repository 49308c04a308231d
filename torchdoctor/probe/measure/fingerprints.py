"""Bytes, shapes and fingerprints of a batch, without changing or keeping it."""

import zlib

from .nested import tensors_of

_MOST_BYTES = 4096  # of each sample's row that is hashed


def nested_bytes(batch):
    """Return the bytes of a batch's tensors."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(batch))


def shapes(batch):
    """Return shapes of the first tensors, such as "32x3x64x64 float32, 32 int64"."""
    return ", ".join(
        "%s %s" % ("x".join(map(str, leaf.shape)) or "1", str(leaf.dtype).replace("torch.", ""))
        for leaf in tensors_of(batch)[:4]
    )


class Fingerprints:
    """A hash for each sample of the first batches, as "input:label".

    Args:
        most_batches: how many batches are hashed; they lie in the warm-up, never in the window.
    """

    def __init__(self, most_batches):
        self.most_batches = most_batches
        self._by_loader = {}

    def of(self, ident):
        """Return fingerprints of one loader's samples, in the order they came."""
        return self._by_loader.get(ident, [])

    def add(self, ident, batch, samples):
        """Hash each sample of a batch: its largest tensor, and its smallest integer one."""
        if samples <= 0:
            return
        tensors = [x for x in tensors_of(batch) if x.dim() > 0 and x.shape[0] == samples]
        tensors = [x for x in tensors if x.device.type == "cpu" and not x.is_sparse]
        if not tensors:
            return
        largest = max(tensors, key=lambda x: x.numel())
        labels = [x for x in tensors if x is not largest and not x.dtype.is_floating_point]
        label = min(labels, key=lambda x: x.numel()) if labels else None
        inputs = _row_hashes(largest, samples)
        marks = _row_hashes(label, samples) if label is not None else ["-"] * samples
        self._by_loader.setdefault(ident, []).extend(
            "%s:%s" % pair
            for pair in zip(inputs, marks)  # noqa: B905
        )


def _row_hashes(tensor, samples):
    rows = tensor.detach().reshape(samples, -1)
    width = rows.shape[1]
    if not rows.dtype.is_floating_point and not rows.dtype.is_complex:
        stride = max(width * rows.element_size() // _MOST_BYTES, 1)
        rows = rows[:, ::stride].contiguous()
    else:
        # Through float32, so that a row has the same hash whichever way it is stored.
        stride = max(width * 4 // _MOST_BYTES, 1)
        rows = rows[:, ::stride].float().contiguous()
    array = rows.numpy()
    return ["%08x" % zlib.crc32(array[i].tobytes()) for i in range(samples)]
