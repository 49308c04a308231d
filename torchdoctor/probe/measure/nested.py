"""The tensors within a batch, their fingerprints, and the data sets that torch's Subset hides."""

import zlib

_MOST_LEAVES = 64
_SHAPED = 4  # tensors of a batch
_MOST_BYTES = 4096  # of each sample's row that is hashed


def tensors_of(batch):
    """Return the tensors of a batch, depth first, through lists, tuples and mappings."""
    tensors = []
    _walk(batch, tensors)
    return tensors


def _walk(batch, tensors):
    parts = ()
    if is_tensor(batch):
        tensors.append(batch)
    elif isinstance(batch, (list, tuple)):
        parts = batch[:_MOST_LEAVES]
    elif isinstance(batch, dict) or (hasattr(batch, "keys") and hasattr(batch, "values")):
        parts = batch.values()
    for part in parts:
        if len(tensors) < _MOST_LEAVES:
            _walk(part, tensors)


def is_tensor(value):
    """Return True for a tensor; without torch, which the program may not have imported."""
    return hasattr(value, "untyped_storage") and hasattr(value, "dim")


def holds_numbers(tensor, torch):
    """Return False for a tensor that stands for one: in a trace or an export, or on "meta".

    Python code of its class carries out its operators: ours would become part of what is traced,
    and to read its numbers makes an export fail.
    """
    by_python = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return not by_python and not tensor.is_meta


def is_array(value):
    """Return True for a NumPy array; without NumPy, which the program may not have imported."""
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def rows(value):
    """Return the rows of a tensor; None: it is none, or has no dimension."""
    return int(value.shape[0]) if is_tensor(value) and value.dim() > 0 else None


def length_of_list(value):
    """Return the length of a list of what each sample has, images of several sizes, say."""
    return len(value) if isinstance(value, (list, tuple)) else None


def parts_of(dataset, torch):
    """Return the data sets that torch's Subset, ConcatDataset or StackDataset takes samples from.

    None for any other, and for a subclass that makes its samples in another way.
    """
    data = torch.utils.data
    dataset_cls = type(dataset)
    for cls in (data.Subset, data.ConcatDataset, data.StackDataset):
        names = ("__getitem__", "__getitems__")
        alike = all(getattr(dataset_cls, name, None) is getattr(cls, name, None) for name in names)
        if isinstance(dataset, cls) and alike:
            parts = [dataset.dataset] if cls is data.Subset else dataset.datasets
            return list(parts.values() if isinstance(parts, dict) else parts)
    return None


def innermost(dataset, torch):
    """Return the data set within torch's Subset and the like; the outer one, if parts differ."""
    inner = [innermost(part, torch) for part in parts_of(dataset, torch) or ()]
    return inner[0] if len(set(map(type, inner))) == 1 else dataset


def leaves(dataset, torch):
    """Return the data sets that samples come from in the end."""
    parts = parts_of(dataset, torch)
    if parts is None:
        return [dataset]
    return [leaf for part in parts for leaf in leaves(part, torch)]


def nested_bytes(batch):
    """Return the bytes of a batch's tensors."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(batch))


def shapes(batch):
    """Return what the first tensors are like: `TensorFacts`s as tuples, which can be compared."""
    return tuple(
        (
            _sizes(leaf),
            str(leaf.dtype).replace("torch.", ""),
            str(leaf.device),
            leaf.element_size(),
        )
        for leaf in tensors_of(batch)[:_SHAPED]
    )


def _sizes(tensor):
    try:
        return tuple(map(_number, tensor.shape))
    except RuntimeError:  # nested rows have sizes of their own each
        return (-1,) * tensor.dim()


def _number(size):
    # To ask a symbolic size for its number would make torch compile for that number alone.
    return size if type(size) is int else -1


def shape_rows(kinds):
    """Return what `shapes` gave of several batches as rows of the process facts."""
    names = ("sizes", "dtype", "device", "element_bytes")
    return [[dict(zip(names, tensor)) for tensor in kind] for kind in kinds]  # noqa: B905


class Fingerprints:
    """Hashes of each sample's input and label, of the first `most_batches`, all in the warm-up."""

    def __init__(self, most_batches):
        self.most_batches = most_batches
        self._by_loader = {}

    def of(self, ident):
        """Return hashes of inputs and labels of one loader's samples, in the order they came."""
        return self._by_loader.get(ident, ([], []))

    def add(self, ident, batch, samples):
        """Hash each sample of a batch: its largest tensor, and its smallest integer one."""
        if samples <= 0:
            return
        tensors = [
            tensor
            for tensor in tensors_of(batch)
            if tensor.dim() > 0 and tensor.shape[0] == samples
        ]
        tensors = [
            tensor for tensor in tensors if tensor.device.type == "cpu" and not tensor.is_sparse
        ]
        if not tensors:
            return
        largest = max(tensors, key=lambda tensor: tensor.numel())
        labels = [
            tensor
            for tensor in tensors
            if tensor is not largest and not tensor.dtype.is_floating_point
        ]
        label = min(labels, key=lambda label: label.numel()) if labels else None
        inputs = _row_hashes(largest, samples)
        marks = _row_hashes(label, samples) if label is not None else [None] * samples
        inputs_so_far, labels_so_far = self._by_loader.setdefault(ident, ([], []))
        inputs_so_far.extend(inputs)
        labels_so_far.extend(marks)


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
