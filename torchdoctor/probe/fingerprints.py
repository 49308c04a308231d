"""Size, shapes and fingerprints of a batch, without changing or keeping it."""

import zlib

from .step_log import UNKNOWN_SIZE

_MOST_BYTES = 4096  # of each sample's row that is hashed
_MOST_LEAVES = 64
ITSELF = object()  # the lead of a batch that is a list of samples


def _leaves(batch, found):
    """Tensors in a batch, depth first: lists, tuples, mappings, and objects with a `data` dict."""
    if len(found) >= _MOST_LEAVES:
        return found
    if hasattr(batch, "untyped_storage") and hasattr(batch, "dim"):
        found.append(batch)
    elif isinstance(batch, (list, tuple)):
        for item in batch[:_MOST_LEAVES]:
            _leaves(item, found)
    elif isinstance(batch, dict) or (hasattr(batch, "keys") and hasattr(batch, "values")):
        for item in batch.values():
            _leaves(item, found)
    return found


def batch_size(batch, asked=None):
    """Samples in a batch: the first dimension that most of its tensors share; else unknown.

    asked: of a loader, the size that it makes. Where a tensor or a list of the batch has it, it is
        that: most tensors of a batch of graphs have one row for each node or edge.
    """
    try:
        # The usual batches, without a walk: a list or tuple of tensors of one length.
        if type(batch) in (list, tuple) and 0 < len(batch) <= 2:
            first, last = len(batch[0]), len(batch[-1])
            if first == last and all(hasattr(x, "dim") and x.dim() for x in batch):
                return first
    except Exception:
        pass  # the walk below knows better
    try:
        sizes = [int(leaf.shape[0]) for leaf in _leaves(batch, []) if leaf.dim() > 0]
    except Exception:
        return UNKNOWN_SIZE
    if type(asked) is int and asked > 1 and asked in (*sizes, *_lengths(batch)):
        return asked
    if not sizes:
        return UNKNOWN_SIZE
    return max(set(sizes), key=sizes.count)


def lead_of(batch, samples, before=None):
    """The index or key of what in a batch is as long as the batch; None: look again.

    `length_by(lead, batch)` then is the size of the next batch of the same make, without a walk.

    before: the one of the batch before, which is kept where it holds here too.
    """
    try:
        for lead in (*([] if before in (None, ITSELF) else [before]), *_leads(batch)):
            if samples > 0 and _length(batch[lead]) == samples:
                return lead
    except Exception:
        pass  # a batch of another make: it is walked through each time
    return ITSELF if isinstance(batch, (list, tuple)) and len(batch) == samples else None


def length_by(lead, batch):
    """Samples of a batch by what `lead_of` found in one before; raises in one of another make."""
    return len(batch) if lead is ITSELF else len(batch[lead])


def _leads(batch):
    if isinstance(batch, (list, tuple)):
        return range(min(len(batch), _MOST_LEAVES))
    return list(batch.keys()) if hasattr(batch, "keys") else ()


def _lengths(batch):
    """Of what lies in a batch; of one that is a list without tensors, one of samples, its own."""
    try:
        items = [batch[lead] for lead in _leads(batch)]
        listed = isinstance(batch, (list, tuple)) and not any(hasattr(x, "dim") for x in items)
        return [_length(x) for x in items] + [len(batch)] * listed
    except Exception:
        return []


def _length(item):
    """Of a tensor, or of a list of what each sample has: images of several sizes, say."""
    if hasattr(item, "untyped_storage") and hasattr(item, "dim"):
        return int(item.shape[0]) if item.dim() > 0 else None
    return len(item) if isinstance(item, (list, tuple)) else None


def nested_bytes(batch):
    """Bytes of a batch's tensors."""
    return sum(leaf.numel() * leaf.element_size() for leaf in _leaves(batch, []))


def shapes(batch):
    """Shapes of the first tensors, such as "32x3x64x64 float32, 32 int64"."""
    return ", ".join(
        "%s %s" % ("x".join(map(str, leaf.shape)) or "1", str(leaf.dtype).replace("torch.", ""))
        for leaf in _leaves(batch, [])[:4]
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
        """Fingerprints of one loader's samples, in the order they came."""
        return self._by_loader.get(ident, [])

    def add(self, ident, batch, samples):
        """Hash each sample of a batch: its largest tensor, and its smallest integer one."""
        if samples <= 0:
            return
        leaves = [x for x in _leaves(batch, []) if x.dim() > 0 and x.shape[0] == samples]
        leaves = [x for x in leaves if x.device.type == "cpu" and not x.is_sparse]
        if not leaves:
            return
        largest = max(leaves, key=lambda x: x.numel())
        labels = [x for x in leaves if x is not largest and not x.dtype.is_floating_point]
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
