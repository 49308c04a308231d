"""Writes what one watched process tells: its facts, steps, events and its own sensors.

A thread of its own writes once a second, so that the training never waits for a disk and a process
that hangs still gives signs of life.
"""

import contextlib
import json
import os
import sys
import time
from _thread import allocate_lock, start_new_thread
from math import nan
from time import perf_counter_ns

from ...probe import dynamo_frames, secret_values
from ...probe.measure.facts import integer, write_json
from . import layout

_FLUSH_S = 1.0
_SYNC_S = 5.0  # a power cut loses no more
_PATIENCE_S = 5.0
_SENSORS_S = 1.0
_SENSORS_MOST_S = 15.0
_SENSORS_SHARE = 1e-4  # of the time so far, between these
_BURST, _EVENT_EVERY_NS = 50, 10_000_000_000  # of one kind
_MOST_EVENTS = 20_000
_MOST_ROWS_WAITING = 1 << 21  # bytes; with half of them the step log fills its rows further
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Keeper:
    """The files of one process; made at `start`."""

    def __init__(self, watch):
        self._watch = watch
        self.folder = watch.plan["channel"]
        self._alerts = os.path.join(self.folder, "alerts-%s.jsonl" % os.uname().nodename)
        self.restart()

    def restart(self):
        """Begin anew, in a forked child: the files are its parent's."""
        self.started = self.changed = False
        self.stem = None
        self._rows = self._events = self._sensors = None
        self._early = []  # events before the start
        self._counts = {}  # by kind: [events, when the next one may come]
        self._total_events = 0
        self._loss = nan
        self._bad_losses = 0
        self._facts = {}
        self._lock = allocate_lock()
        self._ended = False
        self._start_ns, self._start_unix_ns = perf_counter_ns(), time.time_ns()
        self._pack = layout.row_of(layout.PROCESS_COLUMNS).pack

    @dynamo_frames.quietly
    def start(self, *_, **__):
        """Make the files and their thread: at the first pass or step, or as a rank joins."""
        if self.started or not self._watch.on or _is_loader_worker():
            self.started = True
            return
        self.started = True
        host = os.uname().nodename
        self.stem = layout.stem(host, os.getpid(), self._start_unix_ns // 10**9)
        path = os.path.join(self.folder, self.stem)
        head = layout.table_head(layout.STEP_COLUMNS)
        self._rows = layout.AppendedFile(path + ".steps", head, _MOST_ROWS_WAITING)
        self._sensors = layout.AppendedFile(
            path + ".sensors", layout.table_head(layout.PROCESS_COLUMNS)
        )
        self._events = layout.AppendedFile(path + ".events")
        for event in self._early:
            self.event(*event)
        self._early = []
        self._group = {}
        self._first_look = True
        self._write_facts()
        if not self._ended:
            with contextlib.suppress(RuntimeError):  # at exit none starts any more: `end` writes
                start_new_thread(self._run, ())

    def row(self, row):
        """Keep a row of the step log."""
        if self._rows is not None:
            self._rows.add(row)

    def has_room(self):
        """Return whether the log takes rows as they come: the disk keeps up with them."""
        return self._rows is None or self._rows.has_room

    def loss(self, value):
        """Keep the last loss; say once in a while that it is not finite."""
        self._loss = value
        if value - value != 0:
            self._watch.log.flag(layout.LOSS_NOT_FINITE)
            self._bad_losses += 1
            if self._bad_losses & (self._bad_losses - 1) == 0:
                self.event(perf_counter_ns(), "loss", repr(value))

    @dynamo_frames.quietly
    def event(self, t_ns, kind, text="", seconds=0.0):
        """Keep an event; of one kind no more than a burst, and then now and then."""
        if self._events is None:
            if len(self._early) < _BURST and not self.started:
                self._early.append((t_ns, kind, text, seconds))
            return
        count = self._counts.setdefault(kind, [0, 0])
        count[0] += 1
        if (count[0] > _BURST and t_ns < count[1]) or self._total_events > _MOST_EVENTS:
            return
        count[1] = t_ns + _EVENT_EVERY_NS
        self._total_events += 1
        row = {"t_ns": t_ns, "step": self._watch.log.step, "kind": kind, "text": text}
        self._events.add(json.dumps({**row, "seconds": seconds}).encode() + b"\n")

    def failed(self, reason):
        """Note why the probe removed itself."""
        self._facts["probe_failed"] = reason
        self.event(perf_counter_ns(), "failed", "the probe removed itself: " + reason)
        self.changed = True

    def steps_found(self, kind, source, again):
        """Keep what a step is: its kind, and the name or the place of what tells it."""
        watch = self._watch
        location = None
        facts = {}
        if kind == "loader":
            row = next((r for r in watch.loaders.rows if r[0] == source), None)
            if row is not None:
                location = _without_text(row[1])
                facts = {"num_workers": row[4], "batch_size": row[5]}
        name = _name_of_step(watch, kind, source)
        self._facts.update(facts, step_kind=kind, step_name=name, location=location)
        self._facts["kind"] = "inference" if watch.log.infers else "training"
        self.event(perf_counter_ns(), "steps", kind + (" from here on" if again else ""))
        self.changed = True

    def _run(self):
        """Write once a second, on a thread of our own, until the process ends."""
        try:
            import signal

            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the user's
        except (ImportError, OSError, ValueError, AttributeError):
            pass
        sync_s = sensors_s = 0.0
        lock = self._lock
        began_s = time.monotonic()
        while not self._ended and lock is self._lock:
            now_s = time.monotonic()
            try:
                if now_s >= sensors_s:
                    every_s = _SENSORS_SHARE * (now_s - began_s)
                    sensors_s = now_s + min(_SENSORS_MOST_S, max(_SENSORS_S, every_s))
                    self._sample()
                    self.changed |= self._watch.log.overlapping.calls > 0
                synced = now_s >= sync_s
                if synced:
                    sync_s = now_s + _SYNC_S
                self.flush(synced)
                self._look_for_group()
                if self.changed:
                    self._write_facts()
                if self._watch.profiling.wanted:
                    self._watch.profiling.told = _read(self._alerts).count(b'"slower"')
            except Exception as error:
                if not self._ended:
                    self._watch.fail("keeper", error)
            time.sleep(_FLUSH_S)

    def flush(self, sync=False):
        """Write what waits."""
        if not self._lock.acquire(timeout=_PATIENCE_S):
            return  # the other thread waits for a disk that hangs: the program's end does not
        try:
            for file in filter(None, (self._rows, self._events, self._sensors)):
                file.flush()
                if sync:
                    file.sync()
        finally:
            self._lock.release()

    def leaves(self, *_, **__):
        """Write what is known as a rank leaves its group."""
        self._watch.log.work()
        self.flush()

    def end(self):
        """Write what is left at the exit of the process."""
        if self._ended:
            return
        self._ended = True
        if self._watch.plan.get("pid") == os.getpid():
            self.start()  # also who starts others to train, or trains nothing, tells how it ended
        if self._rows is None:
            return
        self._facts["exited"] = getattr(sys, "last_type", None) is None  # no KeyboardInterrupt, too
        self._sample()
        self.flush()
        self._write_facts()

    def _look_for_group(self):
        """Rewrite the facts once the process group is there, and once after the first steps."""
        if not self._group.get("backend"):  # and it is kept once the program has left the group
            self._group = _group(self._watch.torch)
            self.changed |= self._group["backend"] is not None
        if self._first_look and self._watch.log.step:
            self._first_look = False
            self.changed = True

    def _write_facts(self):
        self.changed = False
        torch = self._watch.torch
        device = self._watch.accelerator
        facts = {
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "start_ns": self._start_ns,
            "start_unix_ns": self._start_unix_ns,
            "argv": secret_values.masked([str(argument) for argument in getattr(sys, "argv", [])]),
            "torch": str(torch.__version__),
            "device": device.type if device.is_used() else "cpu",
            **(self._group or _group(torch)),
            **self._facts,
            "overlapping": self._watch.log.overlapping.facts(),
        }
        try:
            write_json(os.path.join(self.folder, self.stem + ".json"), facts)
        except OSError:
            self.changed = not self._ended  # a full disk: tried again

    def _sample(self):
        """Add a row of sensors; what this system does not tell is NaN."""
        log = self._watch.log
        status = _fields("/proc/self/status")
        stat = _stat()
        io = _fields("/proc/self/io")
        used, reserved = self._device_bytes()
        now = perf_counter_ns()
        self._sensors.add(
            self._pack(
                now,
                time.time_ns(),
                log.step,
                log.phase,
                (now - log.phase_ns) / 1e9,
                float(self._loss),
                stat[0],
                _queued_s(),
                stat[1],
                status.get("VmSwap", nan) * 1024,
                stat[2],
                io.get("read_bytes", nan),
                io.get("write_bytes", nan),
                used,
                reserved,
                float(self._rows.lost),
            )
        )

    def _device_bytes(self):
        device = self._watch.accelerator
        try:
            if device.built and device.is_used():
                allocated, reserved = device.memory_bytes()
                return float(allocated), float(reserved)
        except Exception:
            pass
        return nan, nan


def _without_text(location):
    """Return a loader's place as it is stored; None: its line is not known."""
    return location and {key: location[key] for key in ("file", "line", "function")}


def _name_of_step(watch, kind, source):
    """Return what of the program tells a step: a class or a function; empty where none does."""
    if kind == "optimizer":
        names = [type(o).__name__ for o, number in watch.optimizers.items() if number == source]
        return names[0] if names else ""
    if kind == "forward":
        model = next((model for model in watch.models.known if model.ident == source), None)
        return "" if model is None else model.cls.__name__
    return watch.entries.name(source) if kind == "entry" else ""


def _is_loader_worker():
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and getattr(worker, "_worker_info", None) is not None


def _group(torch):
    """Return rank, world size and backend: of the process group, else of the environment."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return {
            "rank": int(distributed.get_rank()),
            "world_size": int(distributed.get_world_size()),
            "backend": str(distributed.get_backend()),
        }
    return {"rank": integer("RANK"), "world_size": integer("WORLD_SIZE"), "backend": None}


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _fields(path):
    """Return the numbers of a file of lines such as "VmSwap:   0 kB"."""
    fields = {}
    for line in _read(path).splitlines():
        name, _, rest = line.partition(b":")
        words = rest.split()
        if words and words[0].isdigit():
            fields[name.decode()] = float(words[0])
    return fields


def _stat():
    """Return CPU seconds, resident bytes and major faults of this process."""
    words = _read("/proc/self/stat").rpartition(b")")[2].split()
    if len(words) < 22:
        return nan, nan, nan
    return (int(words[11]) + int(words[12])) * _TICK_S, int(words[21]) * _PAGE, float(words[9])


def _queued_s():
    words = _read("/proc/self/schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 else nan
