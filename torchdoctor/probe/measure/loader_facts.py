"""The facts of one DataLoader (`schema.LoaderFacts`), and which batches overtook others.

A loader with workers puts batches that come early aside. A wait that begins with a batch in the
queue is no wait for a worker: it is the work of taking the batch over.
"""

import inspect
import multiprocessing
import os
import time
import weakref

from ..reasons import reason
from ..wrapping import wrap
from . import dataset_writes
from .batch_sizes import BatchSizes
from .nested import innermost, nested_bytes, shape_rows, shapes

_MOST_SHAPES = 8
_STARTING = 2  # batches of each worker
_COUNTED = (
    "iterators",
    "batches",
    "samples",
    "overtaken",
    "overtaken_s",
    "looks",
    "taken_over_s",
    "awaited_s",
)


class Known:
    """One loader: what it is, and what its first batches showed."""

    def __init__(self, loader, location, torch, iterators_before, closely=False):
        self._torch = torch
        self._loader = weakref.ref(loader)
        self._location = location
        self._iterators_before = iterators_before
        self.iterators = self.batches = self.samples = 0
        # `Overtaken` counts these.
        self.overtaken = self.looks = 0
        self.overtaken_s = self.taken_over_s = self.awaited_s = 0.0
        self._walls = []
        self._cpus = []
        self._queued = []
        self._sizes = []
        self._shapes = []
        self.writes = dataset_writes.of(loader.dataset) if closely else []
        self.batch_bytes = 0  # of the largest of the first batches
        self._iterator = None  # a weak reference to the last one
        batch_size = getattr(loader, "batch_size", None)
        sampler = getattr(loader, "batch_sampler", None)
        self.sizes = BatchSizes(batch_size or getattr(sampler, "batch_size", None))
        # At once: `for batch in DataLoader(...)` keeps no name for the loader, and it is soon gone.
        self._describe(loader)

    def _describe(self, loader):
        self._described = _described(loader, self._torch)
        self._described["no_second"] = why_no_second(loader, self._torch, self.writes)

    def is_made_where(self, other):
        """Return whether the same line made both: one after another they are one loader."""
        location = self._location
        its = other._location
        if not location or not its:
            return False
        return (location["file"], location["line"]) == (its["file"], its["line"])

    def loader(self):
        """Return the loader, as long as the program holds it."""
        return self._loader()

    def began(self, iterator):
        """Note a new pass over it."""
        self.iterators += 1
        self._iterator = weakref.ref(iterator)

    def place(self):
        """Return batches that the pass under way has handed out; 0: torch does not count them."""
        return getattr(self.iterator(), "_num_yielded", 0)

    def iterator(self):
        """Return the iterator of the pass under way; None: there is none."""
        return self._iterator() if self._iterator is not None else None

    def note(self, batch, samples, wall_s, on_cpu):
        """Look closer at one of the first batches."""
        self._walls.append(wall_s)
        cpu_s, queued_s = on_cpu
        self._cpus.append(cpu_s + (queued_s or 0.0))
        self._queued.append(queued_s)
        self._sizes.append(max(samples, 1))
        self.batch_bytes = max(self.batch_bytes, nested_bytes(batch))
        kind = shapes(batch)
        if kind and kind not in self._shapes and len(self._shapes) < _MOST_SHAPES:
            self._shapes.append(kind)

    def facts(self, ident):
        """Return the loader as a row of the process facts."""
        if (loader := self._loader()) is not None:
            self._describe(loader)  # a framework may have changed it since
        row = {
            **self._described,
            "ident": ident,
            "location": self._location,
            "iterators_before": self._iterators_before,
            "batch_tensors": shape_rows(self._shapes),
            **{name: getattr(self, name) for name in _COUNTED},
            "dataset_writes": self.writes,
        }
        wall_s = sum(self._walls)
        if row.get("num_workers") == 0 and wall_s > 0:
            per_sample = sorted(w / n for w, n in zip(self._walls, self._sizes))  # noqa: B905
            row["sample_time_s"] = per_sample[len(per_sample) // 2]
            row["sample_cpu_share"] = min(sum(self._cpus) / wall_s, 1.0)
            if None not in self._queued:
                row["sample_queue_share"] = min(sum(self._queued) / wall_s, 1.0)
        return row


def _described(loader, torch):
    dataset = loader.dataset
    cls = type(loader)
    innermost_cls = type(innermost(dataset, torch))
    iterable = str(getattr(loader, "_dataset_kind", "")) == "1"
    flags = {"pin_memory": False, "persistent_workers": False, "in_order": True}
    return {
        "cls": "%s.%s" % (cls.__module__, cls.__qualname__),
        "num_workers": int(getattr(loader, "num_workers", 0)),
        "batch_size": getattr(loader, "batch_size", None),
        "prefetch_factor": getattr(loader, "prefetch_factor", None),
        **{name: bool(getattr(loader, name, usual)) for name, usual in flags.items()},
        "iterable": iterable,
        "shards_by_worker": shards(dataset) if iterable else None,
        "dataset_cls": "%s.%s" % (innermost_cls.__module__, innermost_cls.__qualname__),
        "dataset_length": _length(dataset),
        "shuffles": _shuffles(loader, torch),
    }


def _shuffles(loader, torch):
    """Return whether samples come in an order drawn anew; None: by a sampler of another kind."""
    sampler = loader
    # Beside a sampler of batches the loader's own sampler is a default that draws nothing.
    while getattr(sampler, "batch_sampler", None) is not None:
        sampler = sampler.batch_sampler
    sampler = getattr(sampler, "sampler", None)
    if isinstance(sampler, torch.utils.data.RandomSampler):
        return True
    return False if isinstance(sampler, torch.utils.data.SequentialSampler) else None


def _length(dataset):
    try:
        length = len(dataset)
        return length if 0 <= length < 2**53 else None
    except Exception:
        return None


def shards(dataset):
    """Return whether an IterableDataset's code asks which worker it is; None: no source."""
    try:
        source = inspect.getsource(type(dataset))
    except (OSError, TypeError):
        return None
    return "get_worker_info" in source or "worker_id" in source or "RANK" in source


def why_no_second(loader, torch, writes):
    """Return why no second loader can run beside one; `writes`: of `dataset_writes`. None: may."""
    # By its own module: a program may have put a class of its own in place of the other name.
    cls = type(loader)
    original = torch.utils.data.dataloader.DataLoader
    dataset = loader.dataset
    methods = ("__iter__", "_get_iterator", "_index_sampler")
    if any(getattr(cls, name, None) is not getattr(original, name, None) for name in methods):
        return reason("own-way-of-batches", loader=cls.__qualname__)
    if isinstance(dataset, torch.utils.data.IterableDataset) and not shards(dataset):
        return reason("iterable-not-sharded", dataset=type(dataset).__qualname__)
    # Asking without `allow_none` would settle the method for the program.
    method = torch.multiprocessing.get_start_method(allow_none=True)
    method = method or multiprocessing.get_all_start_methods()[0]
    if loader.multiprocessing_context is not None or method != "fork":
        return reason("workers-not-forked")
    if writes:
        return reason("dataset-changes-itself", attribute=writes[0]["name"])
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return reason("several-processes-together")
    return None


class Overtaken:
    """One pass over a loader; counts in `known`, its `Known`."""

    def __init__(self, record, in_order):
        self._known, self._in_order = record, in_order  # none is overtaken where any may come
        self._wanted = None  # number of the batch that is waited for
        self._ready_s = None  # since when a later one has lain ready, within this wait

    def came(self, wanted, number, began_s, held, ready):
        """Note that batch `number` came out of the workers' queue while `wanted` is waited for.

        By `began_s` a later one had been put aside (`held`), or the queue held one (`ready`).
        """
        record = self._known
        now = time.perf_counter()
        if ready is not None:
            record.looks += 1
            if ready:
                record.taken_over_s += now - began_s
            else:
                record.awaited_s += now - began_s
        if not self._in_order:
            return
        if wanted != self._wanted:
            self._wanted = wanted
            self._ready_s = began_s if held else None
        if number == wanted:
            if self._ready_s is not None:
                record.overtaken += 1
                record.overtaken_s += now - self._ready_s
            self._wanted = self._ready_s = None
        elif self._ready_s is None:
            self._ready_s = now


def _lies_ready(iterator):
    """Return True if something lies in the queue of the workers (or of the pinning thread)."""
    try:
        return not iterator._data_queue.empty()
    except Exception:  # of another torch, or a queue that was closed
        return False


def watch_order(session, cls):
    """Watch what comes out of the workers' queue; `cls`: torch's iterator with workers."""
    came = session.guarded(Overtaken.came)

    def make(old):
        def _get_data(self):
            overtaken = getattr(self, "_torchdoctor_overtaken", None)
            if overtaken is None or not session.on:
                return old(self)
            began_s = time.perf_counter()
            # A task is (worker,), and (worker, batch) once its batch was put aside.
            held = any(len(task) == 2 for task in tuple(self._task_info.values()))
            wanted = self._rcvd_idx
            # The first ones of an epoch are waited for while its workers start.
            starting = wanted < _STARTING * self._num_workers
            ready = None if starting else _lies_ready(self)
            answer = old(self)
            came(overtaken, wanted, answer[0], began_s, held, ready)
            return answer

        return _get_data

    wrap(cls, "_get_data", make)
