"""The tensors of a batch."""

_MOST_LEAVES = 64


def leaves(batch):
    """Tensors in a batch, depth first: lists, tuples, mappings, and objects with a `data` dict."""
    return _walk(batch, [])


def _walk(batch, found):
    if len(found) >= _MOST_LEAVES:
        return found
    if is_tensor(batch):
        found.append(batch)
    elif isinstance(batch, (list, tuple)):
        for item in batch[:_MOST_LEAVES]:
            _walk(item, found)
    elif isinstance(batch, dict) or (hasattr(batch, "keys") and hasattr(batch, "values")):
        for item in batch.values():
            _walk(item, found)
    return found


def is_tensor(item):
    """Without torch, which the program may not have imported."""
    return hasattr(item, "untyped_storage") and hasattr(item, "dim")


def rows(item):
    """Of a tensor; None: it is none, or has no dimension."""
    return int(item.shape[0]) if is_tensor(item) and item.dim() > 0 else None


def length_of_list(item):
    """Of a list of what each sample has, images of several sizes, say; None: it is none."""
    return len(item) if isinstance(item, (list, tuple)) else None
