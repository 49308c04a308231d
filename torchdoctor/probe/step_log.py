"""Event codes, and the buffer that turns events into binary rows on disk.

Loaded by path inside the user's process (standard library only) and imported by the tool that
reads the rows back. A row is four int64: code, ident, t_ns, value; `t_ns` is
`time.perf_counter_ns`, which on Linux is the clock of `time.monotonic_ns` in every process. Rows
are nearly but not always in the order of time (a garbage collection is noted when it ends).
"""

import os
from array import array
from collections import deque
from struct import Struct
from threading import get_ident, main_thread
from time import perf_counter_ns

LOADER_START_BEGIN = 1  # iter(loader); ident = loader | iterator ordinal << 20
LOADER_START_END = 2
FETCH_BEGIN = 3  # next(iterator); ident likewise; value: the thread
FETCH_END = 4  # value: samples in the batch, -1 exhausted, -2 unknown
FORWARD_BEGIN = 5  # outermost call of a root module; ident = model
FORWARD_END = 6  # value bits: 1 grad enabled, 2 module.training, 4 autocast
BACKWARD_BEGIN = 7  # value: the thread
BACKWARD_END = 8  # value: index into the losses, or -1
OPTIMIZER_BEGIN = 9  # ident = optimizer; value: the thread
OPTIMIZER_END = 10
COPY_BEGIN = 11  # host to device; ident bits: 1 pinned source, 2 non_blocking
COPY_END = 12  # value: bytes
GC_BEGIN = 13  # value: generation
GC_END = 14
EXPLICIT_STEP = 15  # torchdoctor.step(samples); value: samples or -2
WINDOW_BEGIN = 16  # after a device synchronisation
WINDOW_END = 17
BOUNDARY = 18  # value: number of the iteration that begins now
SWITCH = 19  # in a switching launch, what is on from here; ident = arm, 0: the untouched program
BLOCK_BEGIN = 20  # after a device synchronisation; ident likewise, value: number of the round
BLOCK_END = 21
GRADIENT_BEGIN = 22  # torch.autograd.grad; ident: number in GRADIENT_CALLS; value: the thread
GRADIENT_END = 23
LEARNED = 24  # a batch has come of a loader (ident) whose batches are steps by the user's word
DEVICE = 25  # the GPU came to the event of this time; value: ns since it came to the first such
OBSERVED = 26  # in an observing launch: from here on a profiler window disturbs it
ENTRY_BEGIN = 27  # outermost call of a known entry point; ident: its number; value: samples or -2
ENTRY_END = 28
GENERATION_BEGIN = 29  # of tokens, within an entry point or as one; ident likewise
GENERATION_END = 30  # value: tokens or -2

# Calls of torch.autograd.grad: those that end a computation, those of an outermost torch.func
# transform, and those whose result is differentiated again (they are part of a forward).
GRADIENT_CALLS = ("autograd.grad", "torch.func", "create_graph")
EXHAUSTED = -1
UNKNOWN_SIZE = -2
LOADER_BITS = 20

_FLUSH_NS = 250_000_000
_pack = Struct("=4q").pack
# What may come before the model is where it is going to learn.
_BEFORE_LEARNING = frozenset(
    (
        LOADER_START_BEGIN,
        LOADER_START_END,
        FETCH_BEGIN,
        FETCH_END,
        COPY_BEGIN,
        COPY_END,
        GC_BEGIN,
        GC_END,
    )
)
_MOST_WAITING = 4096  # recorded and not reached yet; a GPU's queue holds about a thousand launches


def open_to_append(path):
    """Return the descriptor of a file that is made where there is none."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


class EventLog:
    """Buffers rows and appends them to `events-<number>.bin` in the channel folder.

    A SIGKILL skips exit handlers, so rows go to disk four times a second, by `on_due` or a flush.
    """

    def __init__(self, folder, number, on_due=None):
        self._folder = folder
        self._on_due = on_due or self.flush
        self.restart(number)

    def restart(self, number):
        """Begin an empty log of another process; what was not written is its parent's."""
        self._path = os.path.join(self._folder, "events-%d.bin" % number)
        self._rows = array("q")
        self._append = self._rows.frombytes
        self._file = None
        self._next_flush_ns = perf_counter_ns() + _FLUSH_NS
        self._written = 0
        self.last_code = 0  # the phase, for the stack sampler

    @property
    def count(self):
        """Return the number of events so far."""
        return self._written + len(self._rows) // 4

    def add(self, code, ident=0, value=0):
        """Append one event; about a quarter of a microsecond. Returns its time (ns)."""
        now = perf_counter_ns()
        self._append(_pack(code, ident, now, value))
        self.last_code = code
        if now > self._next_flush_ns:
            self._next_flush_ns = now + _FLUSH_NS
            self._on_due()
        return now

    def add_at(self, code, ident, t_ns, value=0):
        """Append an event that began earlier; readers sort by time."""
        self._append(_pack(code, ident, t_ns, value))

    def create(self):
        """Make the file before there is anything to write: the probe was here."""
        if self._file is None:
            self._file = open_to_append(self._path)

    def flush(self):
        """Write what is buffered. Its own cost is one write call."""
        # Swap first: another thread may append while we write.
        rows, self._rows = self._rows, array("q")
        self._append = self._rows.frombytes
        if not rows:
            return
        self.create()
        left = memoryview(rows.tobytes())
        while left:
            left = left[os.write(self._file, left) :]
        self._written += len(rows) // 4


class DeviceLog(EventLog):
    """Adds a DEVICE row for each event of the main thread that the GPU has come to.

    The device's events are recorded into the current stream, and asked for later without waiting.
    """

    def __init__(self, folder, number, on_due, accelerator):
        self._accelerator, self._main = accelerator, main_thread().ident
        self._waiting, self._last = deque(), None  # (host ns, event); the last that was reached
        self._elapsed_ns = 0.0  # of that one, since the first
        super().__init__(folder, number, on_due)

    def add(self, code, ident=0, value=0):
        """Append one event, as `EventLog.add`."""
        now = super().add(code, ident, value)
        accelerator = self._accelerator
        waiting = self._waiting
        if accelerator is None or get_ident() != self._main or len(waiting) >= _MOST_WAITING:
            return now
        try:
            event = accelerator.event(code not in _BEFORE_LEARNING)
            if event is not None:
                waiting.append((now, event))
        except Exception:
            self._lose()
        return now

    def flush(self, wait=False):
        """Write what is buffered, and what the GPU came to; `wait`: until it came to all."""
        waiting = self._waiting
        if waiting and self._accelerator.is_capturing():
            waiting = ()  # these are asked for later
        try:
            if wait and waiting:
                waiting[-1][1].synchronize()
            while waiting and get_ident() == self._main and waiting[0][1].query():
                now, event = waiting.popleft()
                self._elapsed_ns += 1e6 * self._last.elapsed_time(event) if self._last else 0.0
                self._last = event
                self.add_at(DEVICE, 0, now, int(self._elapsed_ns))
        except Exception:  # events of two devices, say
            self._lose()
        super().flush()

    def end_device_times(self):
        """Record no more events of the device."""
        self._accelerator, self._waiting = None, deque()

    def _lose(self):
        """Let the host's times count, for all events."""
        self._accelerator, self._waiting = None, deque()
        self.add_at(DEVICE, 0, perf_counter_ns(), -1)
