"""What torch's Subset and the like hold: `random_split` hides the user's data set in one."""

from __future__ import annotations

from typing import Any


def parts_of(dataset: Any, torch: Any) -> list[Any] | None:
    """The data sets that torch's Subset, ConcatDataset or StackDataset takes its samples from.

    None for any other, and for a subclass that makes its samples in another way. (torch's own
    `__getitems__` do no more than to ask for one sample after the other, unless a part can more.)
    """
    data = torch.utils.data
    for cls in (data.Subset, data.ConcatDataset, data.StackDataset):
        if isinstance(dataset, cls):
            names = ("__getitem__", "__getitems__")
            if any(getattr(type(dataset), x, None) is not getattr(cls, x, None) for x in names):
                return None
            parts = dataset.dataset if cls is data.Subset else dataset.datasets
            if cls is data.Subset:
                return [parts]
            return list(parts.values() if isinstance(parts, dict) else parts)
    return None


def innermost(dataset: Any, torch: Any) -> Any:
    """The data set within torch's Subset and the like; the outer one where those are of two kinds.

    Of several alike the first.
    """
    parts = parts_of(dataset, torch)
    inner = [innermost(part, torch) for part in parts or ()]
    return inner[0] if len(set(map(type, inner))) == 1 else dataset


def leaves(dataset: Any, torch: Any) -> list[Any]:
    """The data sets that samples come from in the end."""
    parts = parts_of(dataset, torch)
    if parts is None:
        return [dataset]
    return [leaf for part in parts for leaf in leaves(part, torch)]
