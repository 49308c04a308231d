"""Waits for a batch while a later one lay ready, and taking over those that lie ready.

A loader with workers puts batches that come early aside. A wait that begins with a batch in the
queue is no wait for a worker: it is the work of taking the batch over.
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

    def came(self, wanted, number, began_s, held, ready):
        """Note that batch `number` came out of the workers' queue while `wanted` is waited for.

        By `began_s` a later one had been put aside (`held`), or the queue held one (`ready`).
        """
        known, now = self._known, time.perf_counter()
        if ready is not None:
            known.looks += 1
            known.taken_over_s += (now - began_s) * ready
            known.awaited_s += (now - began_s) * (not ready)
        if not self._in_order:
            return
        if wanted != self._wanted:
            self._wanted, self._ready_s = wanted, began_s if held else None
        if number == wanted:
            if self._ready_s is not None:
                known.overtaken += 1
                known.overtaken_s += now - self._ready_s
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
