"""Waits for a batch while a later one lay ready, and taking over those that lie ready.

A loader with workers hands batches out in the order of their numbers, and puts those that come
early aside. Each that is put aside is seen here as it comes, in the training process. A wait that
begins with a batch in the queue is no wait for a worker: it is the work of taking the batch over.
"""

import time

from ..wrapping import wrap

_STARTING = 2  # batches of each worker


class Overtaken:
    """One pass over a loader; counts in `known`, its `loader_facts.Known`."""

    def __init__(self, known, in_order):
        self._known, self._in_order = known, in_order  # none is overtaken where any may come
        self._wanted = None  # number of the batch that is waited for
        self._ready_s = None  # since when a later one has lain ready, within this wait

    def took(self, seconds, ready):
        """Note a look into the workers' queue; `ready`: something was in it from the start."""
        self._known.looks += 1
        self._known.taken_over_s += seconds * ready
        self._known.awaited_s += seconds * (not ready)

    def came(self, wanted, number, began_s, held):
        """Note that batch `number` came out of the workers' queue while `wanted` is waited for.

        `held`: a later one had been put aside when waiting for this one began, at `began_s`.
        """
        if not self._in_order:
            return
        now = time.perf_counter()
        if wanted != self._wanted:
            self._wanted, self._ready_s = wanted, began_s if held else None
        if number == wanted:
            if self._ready_s is not None:
                self._known.overtaken += 1
                self._known.overtaken_s += now - self._ready_s
            self._wanted = self._ready_s = None
        elif self._ready_s is None:
            self._ready_s = now


def _lies_ready(iterator):
    """Return True if something lies in the queue of the workers (or of the pinning thread)."""
    try:
        return not iterator._data_queue.empty()
    except Exception:  # of another torch, or a queue that was closed
        return False


def install(session, cls):
    """Watch what comes out of the workers' queue; `cls`: torch's iterator with workers."""
    clock = time.perf_counter

    def make(old):
        def _get_data(self):
            overtaken = getattr(self, "_torchdoctor_overtaken", None)
            if overtaken is None or not session.on:
                return old(self)
            began_s = clock()
            # A task is (worker,), and (worker, batch) once its batch was put aside.
            held = any(len(task) == 2 for task in tuple(self._task_info.values()))
            wanted, ready = self._rcvd_idx, _lies_ready(self)
            answer = old(self)
            try:
                # The first ones of an epoch are waited for while its workers start.
                if wanted >= _STARTING * self._num_workers:
                    overtaken.took(clock() - began_s, ready)
                overtaken.came(wanted, answer[0], began_s, held)
            except Exception as error:
                session.fail("loader_order", error)
            return answer

        return _get_data

    wrap(cls, "_get_data", make)
