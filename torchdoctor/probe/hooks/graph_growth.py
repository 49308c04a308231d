"""Operations that the main thread has recorded for autograd since its last event.

A forward that no module's call shows (a function of tensors, `model.forward()`, `torch.func`)
records them as any other does, and preparing a batch does not. Autograd counts them per thread and
the stack sampler is another one, so it asks by a pending call: the interpreter makes it in the
main thread, between two instructions.
"""

import threading
from time import perf_counter_ns

from .. import step_log
from .model_hooks import keep_from_dynamo

try:
    import ctypes
except ImportError:  # a Python that was built without it
    ctypes = None  # type: ignore[assignment]

_LOST_NS = 1_000_000_000


class MarkedLog(step_log.EventLog):
    """A log that notes at each of the main thread's events how many operations were recorded.

    Args:
        sequence: the calling thread's count of recorded operations; None: it cannot be known.
    """

    def __init__(self, folder, pid, on_due, sequence):
        self.sequence = sequence
        self.mark = (0, 0)  # number of the event, recorded operations
        self._main = threading.main_thread().ident
        super().__init__(folder, pid, on_due)

    def add(self, code, ident=0, value=0):
        """Append one event, as `EventLog.add`."""
        if self.sequence is not None and threading.get_ident() == self._main:
            self.mark = (self.mark[0] + 1, self.sequence())
        return super().add(code, ident, value)


class Growth:
    """Sorts keys by whether operations were recorded between the last event and now.

    Args:
        log: of the events.
        counts: (key, recorded) -> how often; they are added here.
        torch: the user's torch module.
    """

    def __init__(self, log, counts, torch):
        self._log, self._counts = log, counts
        self._waiting = {}
        self._asked_ns = 0
        keep_from_dynamo(torch, Growth._settle.__code__)
        self._call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._settle)
        # The interpreter keeps no reference to what it is asked to call, and may call it while it
        # shuts down: it must never be freed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._call))
        # A handle of our own: argument types set on the shared one would be the program's too.
        python = ctypes.PyDLL(ctypes.pythonapi._name, handle=ctypes.pythonapi._handle)
        self._add_pending = python.Py_AddPendingCall
        self._add_pending.argtypes = (type(self._call), ctypes.c_void_p)

    def ask(self, key, mark):
        """Sort `key`, seen when the log's mark was `mark`, once the main thread gets to it."""
        waiting, entry = self._waiting, (key, mark)
        waiting[entry] = waiting.get(entry, 0) + 1
        # A long operation holds it up; a call that got lost must not hold it up for ever.
        now = perf_counter_ns()
        if not self._asked_ns or now - self._asked_ns > _LOST_NS:
            self._asked_ns = now
            self._add_pending(self._call, None)

    def _settle(self, _):
        self._asked_ns = 0
        waiting, self._waiting = self._waiting, {}
        counts = self._counts
        number, recorded = self._log.mark
        now = self._log.sequence()
        for (key, (then, before)), count in list(waiting.items()):
            # Of what came after another event, that event's own count tells.
            after = now if number == then else recorded
            row = (key, after > before)
            counts[row] = counts.get(row, 0) + count
        return 0


def sequence_of(torch):
    """Return the function that counts this thread's recorded operations; None: not known."""
    if ctypes is None:
        return None
    return getattr(torch._C._autograd, "_get_sequence_nr", None)
