"""The tensors within a batch, and the data sets within another (which torch's Subset hides)."""

from __future__ import annotations

from typing import Any

_MOST_LEAVES = 64


def tensors_of(batch: Any) -> list[Any]:
    """Return the tensors of a batch, depth first, through lists, tuples and mappings."""
    return _walk(batch, [])


def _walk(batch: Any, tensors: list[Any]) -> list[Any]:
    if len(tensors) >= _MOST_LEAVES:
        return tensors
    if is_tensor(batch):
        tensors.append(batch)
    elif isinstance(batch, (list, tuple)):
        for part in batch[:_MOST_LEAVES]:
            _walk(part, tensors)
    elif isinstance(batch, dict) or (hasattr(batch, "keys") and hasattr(batch, "values")):
        for part in batch.values():
            _walk(part, tensors)
    return tensors


def is_tensor(value: Any) -> bool:
    """Return True for a tensor; without torch, which the program may not have imported."""
    return hasattr(value, "untyped_storage") and hasattr(value, "dim")


def rows(value: Any) -> int | None:
    """Return the rows of a tensor; None: it is none, or has no dimension."""
    return int(value.shape[0]) if is_tensor(value) and value.dim() > 0 else None


def length_of_list(value: Any) -> int | None:
    """Return the length of a list of what each sample has, images of several sizes, say."""
    return len(value) if isinstance(value, (list, tuple)) else None


def parts_of(dataset: Any, torch: Any) -> list[Any] | None:
    """Return the data sets that torch's Subset, ConcatDataset or StackDataset takes samples from.

    None for any other, and for a subclass that makes its samples in another way. (torch's own
    `__getitems__` do no more than to ask for one sample after the other, unless a part can more.)
    """
    data = torch.utils.data
    for cls in (data.Subset, data.ConcatDataset, data.StackDataset):
        if isinstance(dataset, cls):
            names = ("__getitem__", "__getitems__")
            if any(getattr(type(dataset), x, None) is not getattr(cls, x, None) for x in names):
                return None
            parts = [dataset.dataset] if cls is data.Subset else dataset.datasets
            return list(parts.values() if isinstance(parts, dict) else parts)
    return None


def innermost(dataset: Any, torch: Any) -> Any:
    """Return the data set within torch's Subset and the like; of several alike the first.

    Where the inner ones are of two kinds, the outer one.
    """
    inner = [innermost(part, torch) for part in parts_of(dataset, torch) or ()]
    return inner[0] if len(set(map(type, inner))) == 1 else dataset


def leaves(dataset: Any, torch: Any) -> list[Any]:
    """Return the data sets that samples come from in the end."""
    parts = parts_of(dataset, torch)
    if parts is None:
        return [dataset]
    return [leaf for part in parts for leaf in leaves(part, torch)]
