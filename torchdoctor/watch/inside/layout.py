"""The folder of a watched run: its files, and the fixed-size rows in them.

    <run folder>/watch/
        run-<host>-<pid>.json         the command as it was started on one host (`recording.Start`)
        machine-<host>-<pid>.sensors  the machine and the program's process tree, some seconds apart
        <host>-<pid>-<unix s>.json    one process that trains (`recording.Process`); rewritten
                         .steps       one row a step, or for several brief or late ones
                         .sensors     the process itself, which is its heartbeat too
                         .events      one JSON object a line (`recording.Event`)
        traces/<...>-<step>.json.gz   a profiler window of a few steps
        alerts-<host>.jsonl           one alert a line

Each file has one writer, which appends whole rows. A table (`.steps`, `.sensors`) begins with
MAGIC, the length of a JSON object as four bytes, and this object, {"columns": [[name, NumPy type],
...]}; zeros fill it up to a multiple of 64 bytes, where the first row begins. A row of zeros was
lost.
"""

from __future__ import annotations

import errno
import json
import math
import os
from struct import Struct
from typing import Any

Columns = tuple[tuple[str, str], ...]

MAGIC = b"tdwatch1"
_ALIGNMENT = 64
# A step is the sum of these, in seconds: what interrupts or is part of another one counts once.
PHASES = (
    "wait",
    "copy",
    "forward",
    "backward",
    "optimizer",
    "evaluation",
    "checkpoint",
    "gc",
    "other",
)
WAIT, COPY, FORWARD, BACKWARD, OPTIMIZER, EVALUATION, CHECKPOINT, GC, OTHER = range(len(PHASES))

# Bits of `flags`.
LOSS_NOT_FINITE = 1  # the loss was NaN or infinite
PROBE_OFF = 2  # the hooks were off; the row covers `steps` steps, and all their time is "other"
PROFILED = 4  # a profiler window was open: no step to compare
RECOMPILED = 8  # torch.compile compiled something
NEW_INPUT = 16  # the model's input had a shape that it never had before
PASS_BEGAN = 32  # a pass over the training loader began: an epoch
SLOW_STEP = 64  # in the thinned part: kept by itself, as it was much slower than its like

STEP_COLUMNS: Columns = (
    ("step", "<u4"),  # number of the row's last step; the run's first one is 1
    ("steps", "<u2"),  # that the row covers; the sums below are of all of them
    ("flags", "<u2"),
    ("start_ns", "<i8"),  # of the row's first step, on the host's monotonic clock
    *((phase, "<f4") for phase in PHASES),  # s
    ("samples", "<f4"),  # 0: unknown
    ("elements", "<f4"),  # of the largest input of the model: longer sequences have more
    # Of the row's last step, from its start, as `coded`: 0 where the ranks exchanged nothing. It is
    # the exchange of gradients by DistributedDataParallel, or else the step's first collective.
    ("entry", "<u2"),  # this rank was ready for it
    ("exchanged", "<u2"),  # it had ended, so the last rank had entered; 0: unknown
)
# NaN: not measured. Sums are since the process began.
PROCESS_COLUMNS: Columns = (
    ("t_ns", "<i8"),  # of the host's monotonic clock
    ("unix_ns", "<i8"),  # the same moment: the difference of both aligns hosts
    ("step", "<i8"),  # steps that have ended
    ("phase", "<i8"),  # index into PHASES, that the process is in
    ("phase_s", "<f8"),  # for how long
    ("loss", "<f8"),  # the last one that could be read without waiting for a device
    ("cpu_s", "<f8"),  # of all threads, without children
    ("queued_s", "<f8"),  # its first thread was ready to run and had no CPU
    ("rss_bytes", "<f8"),
    ("swapped_bytes", "<f8"),  # of this process
    ("major_faults", "<f8"),
    ("read_bytes", "<f8"),  # from storage
    ("write_bytes", "<f8"),
    ("device_bytes", "<f8"),  # of the accelerator's memory, in tensors
    ("device_reserved_bytes", "<f8"),  # by torch's allocator
    ("lost_rows", "<f8"),  # that could not be written (a full disk)
)
MACHINE_COLUMNS: Columns = (
    ("t_ns", "<i8"),
    ("unix_ns", "<i8"),
    ("cpus", "<f4"),  # that the program may use
    ("busy_s", "<f8"),  # CPU seconds of the whole machine
    ("iowait_s", "<f8"),
    ("tree_cpu_s", "<f8"),  # of the program's processes
    ("cpu_mhz", "<f4"),  # mean over CPUs
    ("throttled_s", "<f8"),  # the cgroup's quota of CPU time was used up
    ("cpu_pressure_s", "<f8"),  # some task waited for a CPU, memory, storage (the kernel's PSI)
    ("memory_pressure_s", "<f8"),
    ("io_pressure_s", "<f8"),
    ("memory_free_bytes", "<f4"),  # available, within the cgroup's limit
    ("memory_limit_bytes", "<f4"),
    ("tree_bytes", "<f4"),  # of the program's processes, shared pages once
    ("swap_in_bytes", "<f8"),  # sum since boot
    ("read_bytes", "<f8"),  # of the program's processes, sum
    ("read_ops", "<f8"),
    ("write_bytes", "<f8"),
    # Means and sums over the GPUs that the program computes on, or over all of them.
    ("gpu_utilization", "<f4"),  # 0 to 1
    ("gpu_memory_bytes", "<f4"),  # of the fullest
    ("gpu_memory_limit_bytes", "<f4"),
    ("gpu_power_w", "<f4"),
    ("gpu_clock_mhz", "<f4"),  # of the slowest
    ("gpu_throttle", "<f4"),  # bits of machine.nvml.THROTTLE_REASONS, of any
    ("gpu_others", "<f4"),  # processes of others that compute there
    ("own_cpu_s", "<f8"),  # of torchdoctor's process beside the program
)
_CODES_PER_OCTAVE = 2340.0
_LARGEST_CODE = 65535


def coded(seconds: float) -> int:
    """Return a time as a number of 16 bits: 0.03 % apart, from 1 us to 270 s; 0 for none."""
    if seconds <= 0:
        return 0
    return min(_LARGEST_CODE, max(1, round(_CODES_PER_OCTAVE * math.log2(1 + seconds * 1e6))))


def decoded(codes: Any) -> Any:
    """Return the seconds of `coded`, of a number or of a NumPy array of floats."""
    return (2.0 ** (codes / _CODES_PER_OCTAVE) - 1) * 1e-6


def stem(host: str, pid: int, unix_s: int) -> str:
    """Return the name, without its ending, of the files of one process."""
    return "%s-%d-%d" % (host, pid, unix_s)


def row_of(columns: Columns) -> Struct:
    """Return the `struct.Struct` of a table's row."""
    letters = {"<u2": "H", "<u4": "I", "<i8": "q", "<f4": "f", "<f8": "d"}
    return Struct("<" + "".join(letters[kind] for _, kind in columns))


def table_head(columns: Columns) -> bytes:
    """Return the bytes before a table's first row."""
    text = json.dumps({"columns": columns}).encode()
    head = MAGIC + len(text).to_bytes(4, "little") + text
    return head + bytes(-len(head) % _ALIGNMENT)


class AppendedFile:
    """A file that one process appends to; what a full disk refused is tried again, up to a limit.

    Raises nothing but MemoryError. What was written is safe from a kill at once, from a power cut
    after `sync`.
    """

    def __init__(self, path: str, head: bytes = b"", most_waiting: int = 1 << 20) -> None:
        self._path = path
        self._waiting = [head] if head else []
        self._most = most_waiting
        self._file = -1
        self._inode = (0, 0)
        self._end = 0
        # Each is written by one thread only: who adds, and who flushes.
        self._added_bytes, self._flushed_bytes = len(head), 0
        self.lost = 0  # pieces that were given up

    @property
    def has_room(self) -> bool:
        """Return whether less than half of what may wait does."""
        return 2 * (self._added_bytes - self._flushed_bytes) < self._most

    def add(self, piece: bytes) -> None:
        """Append bytes at the next flush."""
        if self._added_bytes - self._flushed_bytes + len(piece) > self._most:
            self.lost += 1
            return
        self._added_bytes += len(piece)
        self._waiting.append(piece)

    def flush(self) -> bool:
        """Write what waits; True once all of it is written."""
        pieces, self._waiting = self._waiting, []  # another thread may add meanwhile
        if not pieces:
            return True
        data = b"".join(pieces)
        try:
            if self._file < 0 or os.fstat(self._file)[1:3] != self._inode:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
                self._inode = os.fstat(self._file)[1:3]  # a program may close it, and open its own
            done = 0
            while done < len(data):  # at a place of our own: half a row is written over next time
                done += os.pwrite(self._file, data[done:], self._end + done)
        except OSError as error:
            self._file = -1 if error.errno == errno.EBADF else self._file
            self._waiting[:0] = [data]
            return False
        self._end += len(data)
        self._flushed_bytes += len(data)
        return True

    def sync(self) -> None:
        """Let the disk have it, so that a power cut does not lose it."""
        try:
            if self._file >= 0:  # nothing may have been written yet
                os.fsync(self._file)
        except OSError:
            pass
