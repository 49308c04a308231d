"""A log that also says when the GPU came to each event: until its queue is full, the host is ahead.

CUDA events are recorded into the program's current stream, and asked for later without waiting.
"""

from collections import deque
from threading import get_ident, main_thread

from . import step_log

_MOST = 4096  # recorded and not reached yet; a GPU's queue holds about a thousand launches
_ASKED_EVERY = 64


class DeviceLog(step_log.EventLog):
    """Adds a DEVICE row for each event of the main thread that the GPU has come to."""

    def __init__(self, folder, pid, on_due, torch):
        self._cuda, self._main = torch.cuda, main_thread().ident
        self._waiting, self._free = deque(), []  # (host ns, event) in order; events to use again
        self._last = self._index = None
        self._elapsed_ns = 0.0  # of the last that was reached, since the first
        super().__init__(folder, pid, on_due)

    def add(self, code, ident=0, value=0):
        """Append one event, as `EventLog.add`."""
        now = super().add(code, ident, value)
        if self._cuda is not None and get_ident() == self._main:
            try:
                self._record(now)
            except Exception:
                self._cuda = None
                self.add_at(step_log.DEVICE, 0, now, -1)  # the host's times count, of all events
        return now

    def _record(self, now):
        cuda, waiting = self._cuda, self._waiting
        if len(waiting) >= _MOST or not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return
        index = cuda.current_device()
        if self._index in (None, index):  # times of two devices cannot be compared
            self._index = index
            event = self._free.pop() if self._free else cuda.Event(enable_timing=True)
            event.record()
            waiting.append((now, event))
            if not len(waiting) % _ASKED_EVERY:
                self._look()

    def _look(self):
        waiting = self._waiting
        while waiting and self._cuda.is_initialized() and waiting[0][1].query():
            now, event = waiting.popleft()
            if self._last is not None:
                self._elapsed_ns += 1e6 * self._last.elapsed_time(event)
                self._free.append(self._last)
            self._last = event
            self.add_at(step_log.DEVICE, 0, now, int(self._elapsed_ns))

    def flush(self, wait=False):
        """Write what is buffered, and what the GPU came to; `wait`: until it came to all."""
        if self._waiting and self._cuda is not None and get_ident() == self._main:
            if wait:
                self._waiting[-1][1].synchronize()
            self._look()
        super().flush()
