"""Samples of a data set kept in memory, as long as they are seen to be the same each time."""

import sys

from ..measure.nested import leaves, parts_of
from ..reasons import reason
from .random_states import SCALARS, global_states, held_generators, restore, same_states

_ASKED_TWICE = 8  # of the first samples
_CHECKED_EACH_PASS = 4
_DEPTH = 4  # of attributes that are searched for a random generator


class NotKeptError(Exception):
    """The cache may not be used for this data set; `why` is the reason, as data."""

    def __init__(self, fact, **values):
        super().__init__(fact)
        self.why = reason(fact, **values)


class SampleCache:
    """Samples of one data set in one process, up to `limit` bytes.

    on_use(): a sample is answered from memory; on_off(why): none may be.
    """

    def __init__(self, torch, limit, on_use, on_off):
        self._torch = torch
        self._room = limit
        self._on_use = on_use
        self._on_off = on_off
        self._samples = {}
        self._asked_twice = self._to_check = 0
        self.on = True
        self.draws_random = False  # or holds a generator, as far as was seen

    def new_pass(self):
        """Note that an epoch begins: what is kept may have become wrong."""
        self._to_check = _CHECKED_EACH_PASS

    def makes_whole_batches(self, dataset):
        """Return whether a data set makes its samples by the batch, and not each by its index."""
        parts = parts_of(dataset, self._torch)
        if parts is not None:
            return any(map(self.makes_whole_batches, parts))
        return hasattr(dataset, "__getitems__")

    def get(self, dataset, index):
        """Return the sample of an index."""
        if not self.on or type(index) not in (int, str):
            return dataset[index]
        if index in self._samples:
            if self._to_check:
                return self._checked(dataset, index)
            self._on_use()
            return self._copy(self._samples[index])
        before = global_states(self._torch) if self._asked_twice < _ASKED_TWICE else None
        sample = dataset[index]
        try:
            if before is not None:
                self._ask_twice(dataset, index, sample, before)
            self._keep(index, sample)
        except NotKeptError as error:
            self._switch_off(error.why)
        return sample

    def _ask_twice(self, dataset, index, sample, before):
        torch = self._torch
        if not self._asked_twice and held_generators(leaves(dataset, torch), torch, _DEPTH):
            self.draws_random = True
            raise NotKeptError("holds-generator")
        self._asked_twice += 1
        after = global_states(torch)
        if not same_states(before, after):
            self.draws_random = True
            raise NotKeptError("draws-random-numbers")
        try:
            again = dataset[index]
        except Exception as error:
            raise NotKeptError("each-sample-only-once") from error
        finally:
            restore(torch, after)
        if not self._equal(sample, again):
            raise NotKeptError("another-sample-at-once")

    def _checked(self, dataset, index):
        self._to_check -= 1
        sample = dataset[index]
        if not self._equal(self._samples[index], sample):
            self._switch_off(reason("another-sample-later"))
        return sample

    def _switch_off(self, why):
        self.on = False
        self._samples.clear()
        self._on_off(why)

    def _keep(self, index, sample):
        size = self._size(sample)
        if size <= self._room:
            self._room -= size
            self._samples[index] = self._copy(sample)

    def _size(self, sample):
        if type(sample) is self._torch.Tensor:
            return int(sample.numel() * sample.element_size()) + 64
        if type(sample) in (list, tuple) or _is_named_tuple(sample):
            return sum(map(self._size, sample)) + 64
        if type(sample) is dict:
            return sum(map(self._size, sample.values())) + 128
        if type(sample).__module__.startswith("PIL."):
            return len(sample.tobytes())
        return int(getattr(sample, "nbytes", 0)) + sys.getsizeof(sample)

    def _copy(self, sample):
        """Return a copy that shares nothing mutable; raise NotKeptError for an unknown type."""
        kind = type(sample)
        if kind in SCALARS or _is_numpy(sample, "generic"):
            return sample
        if kind is self._torch.Tensor:
            if sample.requires_grad or sample.device.type != "cpu" or sample.is_sparse:
                raise NotKeptError("tensors-not-kept")
            return sample.clone()
        if kind is list or kind is tuple:
            return kind(map(self._copy, sample))
        if _is_named_tuple(sample):
            return kind(*map(self._copy, sample))
        if kind is dict:
            return {key: self._copy(value) for key, value in sample.items()}
        if _is_numpy(sample, "ndarray") and sample.dtype != object:
            return sample.copy(order="K")
        if kind.__module__ == "PIL.Image" and kind.__name__ == "Image":
            return sample.copy()
        raise NotKeptError("type-not-kept", type=f"{kind.__module__}.{kind.__qualname__}")

    def _equal(self, kept, sample):
        """Return whether two samples are the same, byte by byte."""
        if type(kept) is not type(sample):
            return False
        if type(kept) is self._torch.Tensor:
            kinds = [
                (tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
                for tensor in (kept, sample)
            ]
            same = kinds[0] == kinds[1]
            return same and bool(self._torch.equal(self._bytes(kept), self._bytes(sample)))
        if isinstance(kept, (list, tuple)):
            return len(kept) == len(sample) and all(map(self._equal, kept, sample))
        if isinstance(kept, dict):
            return list(kept) == list(sample) and all(self._equal(kept[k], sample[k]) for k in kept)
        if hasattr(kept, "tobytes"):
            names = ("dtype", "shape", "mode", "size")
            same = all(getattr(kept, name, None) == getattr(sample, name, None) for name in names)
            return same and kept.tobytes() == sample.tobytes()
        return repr(kept) == repr(sample)

    def _bytes(self, tensor):
        return tensor.contiguous().reshape(-1).view(self._torch.uint8)


def _is_numpy(value, name):
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    kind = getattr(numpy, name)
    return type(value) is kind if name == "ndarray" else isinstance(value, kind)


def _is_named_tuple(value):
    return isinstance(value, tuple) and hasattr(value, "_fields")
