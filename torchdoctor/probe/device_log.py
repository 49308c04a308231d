"""A log that also says when the GPU came to each event: the host runs ahead, up to a full queue."""

from collections import deque
from threading import get_ident, main_thread

from . import step_log

_MOST = 4096  # recorded and not reached yet; a GPU's queue holds about a thousand launches


class DeviceLog(step_log.EventLog):
    """Adds a DEVICE row for each event of the main thread that the GPU has come to.

    The device's events are recorded into the current stream, and asked for later without waiting.
    """

    def __init__(self, folder, pid, on_due, accelerator):
        self._accelerator, self._main = accelerator, main_thread().ident
        self._waiting, self._last = deque(), None  # (host ns, event); the last that was reached
        self._elapsed_ns = 0.0  # of that one, since the first
        super().__init__(folder, pid, on_due)

    def add(self, code, ident=0, value=0):
        """Append one event, as `EventLog.add`."""
        now = super().add(code, ident, value)
        accelerator, waiting = self._accelerator, self._waiting
        if accelerator is None or get_ident() != self._main or len(waiting) >= _MOST:
            return now
        try:
            event = accelerator.event()
            if event is not None:
                waiting.append((now, event))
        except Exception:
            self._lose()
        return now

    def flush(self, wait=False):
        """Write what is buffered, and what the GPU came to; `wait`: until it came to all."""
        waiting = self._waiting
        try:
            if wait and waiting:
                waiting[-1][1].synchronize()
            while waiting and get_ident() == self._main and waiting[0][1].query():
                now, event = waiting.popleft()
                self._elapsed_ns += 1e6 * self._last.elapsed_time(event) if self._last else 0.0
                self._last = event
                self.add_at(step_log.DEVICE, 0, now, int(self._elapsed_ns))
        except Exception:  # events of two devices, say
            self._lose()
        super().flush()

    def _lose(self):
        """Let the host's times count, for all events."""
        self._accelerator, self._waiting = None, deque()
        self.add_at(step_log.DEVICE, 0, step_log.perf_counter_ns(), -1)
