"""Samples of the main thread's Python stack, by phase; only in launches that are not timed.

Each says whether autograd recorded operations since the last event: a forward that no module's call
shows does, preparing a batch does not. The count is the main thread's own, so the sampler asks by a
pending call, which the interpreter makes there between two instructions.
"""

import ctypes
import gc
import itertools
import math
import os
import sys
import threading
import time
from collections import Counter

from . import places, step_log
from .measure.grown_objects import GrownObjects
from .measure.loops import loops_around

_INTERVAL_S = 0.005  # between two samples
_LOST_NS = 1_000_000_000
_MOST_ROWS = 200  # a simulator's time is spread over many functions
_SWITCH_S = 1e-5
_OUTWARD = ("f_back",) * 500  # the deepest stack that is looked through
_COLLECTS_THERE = sys.version_info < (3, 12)
_paused = [False]  # whether the garbage collection was on and waits
_COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
_PHASES = {
    **dict.fromkeys((step_log.LOADER_START_BEGIN, step_log.FETCH_BEGIN), "loader"),
    **dict.fromkeys((step_log.FETCH_END, step_log.BOUNDARY, step_log.LEARNED), "before_forward"),
    step_log.EXPLICIT_STEP: "before_forward",
    **dict.fromkeys((step_log.ENTRY_BEGIN, step_log.GENERATION_BEGIN), "before_forward"),
    step_log.LOADER_START_END: "between_epochs",  # or at the end of a pass
    step_log.FORWARD_BEGIN: "forward",
    **dict.fromkeys((step_log.BACKWARD_BEGIN, step_log.GRADIENT_BEGIN), "backward"),
    **dict.fromkeys((step_log.BACKWARD_END, step_log.GRADIENT_END), "after_backward"),
    step_log.OPTIMIZER_BEGIN: "optimizer",
    step_log.OPTIMIZER_END: "after_step",
}
# In these a forward may run that no event shows; what draws from a forward's output is no model.
_BETWEEN = ("before_forward", "after_step", "after_backward")
_BEHIND = "other"  # a forward, before the backward


class MarkedLog(step_log.DeviceLog):
    """A log that notes at each of the main thread's events how many operations were recorded."""

    def __init__(self, folder, pid, on_due, session):
        # The calling thread's count of recorded operations; None: it cannot be known.
        self.sequence = getattr(session.torch._C._autograd, "_get_sequence_nr", None)
        self.mark = (0, 0)  # number of the event, recorded operations
        super().__init__(folder, pid, on_due, session.accelerator)

    def add(self, code, ident=0, value=0):
        """Append one event, as `EventLog.add`."""
        if self.sequence is not None and threading.get_ident() == self._main:
            self.mark = (self.mark[0] + 1, self.sequence())
        return super().add(code, ident, value)


class Growth:
    """Adds keys to `counts` by whether operations were recorded between the last event and now."""

    def __init__(self, log, counts):
        self._log = log
        self._counts = counts
        self._waiting = Counter()
        self._asked_ns = 0
        self._settled = (0, 0)  # the log's mark when samples were counted last
        self._last = None  # what was seen last
        self._call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._settle)
        # The interpreter keeps no reference to what it is asked to call, and may call it while it
        # shuts down: it must never be freed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._call))
        # A handle of our own: argument types set on the shared one would be the program's too.
        python = ctypes.PyDLL(ctypes.pythonapi._name, handle=ctypes.pythonapi._handle)
        self._add_pending = python.Py_AddPendingCall
        self._add_pending.argtypes = (type(self._call), ctypes.c_void_p)

    def ask(self, key, mark, since_sample=False):
        """Count `key`, seen when the log's mark was `mark`, once the main thread gets to it.

        `since_sample`: whether operations were recorded since the last sample, of the same line and
        between the same events; any other sample says nothing of what this line records.
        """
        if since_sample:
            follows = self._last == key and self._settled[0] == mark[0]
            mark = self._settled if follows else (mark[0], math.inf)
        self._last = key
        self._waiting[key, mark] += 1
        # A long operation holds it up; a call that got lost must not hold it up for ever.
        now = time.perf_counter_ns()
        if not self._asked_ns or now - self._asked_ns > _LOST_NS:
            self._asked_ns = now
            self._add_pending(self._call, None)

    def forget(self):
        """Count nothing of what was asked so far."""
        self._waiting = Counter()

    def _settle(self, _):
        self._asked_ns = 0
        waiting, self._waiting = self._waiting, Counter()
        number, recorded = self._log.mark
        now = self._log.sequence()
        for (key, (then, before)), count in list(waiting.items()):
            # Of what came after another event, that event's own count tells.
            after = now if number == then else recorded
            self._counts[key, after > before] += count
        self._settled = (number, now)
        return 0


class Stacks:
    """Counts of (file, line, function), phase, leaf, and whether a graph grew."""

    def __init__(self, session):
        self._session = session
        self._counts = Counter()
        self._main = threading.main_thread().ident
        log = session.log
        self._growth = Growth(log, self._counts) if log.sequence else None
        # Pure Python keeps the GIL for 5 ms by default, and torch's operators let go of it: samples
        # would all fall on the first operator after a piece of Python, and none on the Python.
        self._users_switch_s, self._on = sys.getswitchinterval(), True
        sys.setswitchinterval(min(self._users_switch_s, _SWITCH_S))
        session.forget.append(_collect_again)
        session.inference.when_trains.append(self._forget)
        session.when_observed.append(self._stop)
        self._thread = threading.Thread(target=self._run, name="torchdoctor-stacks", daemon=True)
        self._thread.start()

    def _run(self):
        session = self._session
        try:
            while self._on and session.on and os.getpid() == session.pid:
                time.sleep(_INTERVAL_S)
                self._sample()
        except Exception as error:
            session.fail("stacks", error)

    def _stop(self):
        self._on = False
        if sys.getswitchinterval() < 2 * _SWITCH_S:  # else the program has set its own since
            sys.setswitchinterval(self._users_switch_s)

    def _sample(self):
        session = self._session
        if not self._is_to_look():
            return
        log = session.log
        mark = log.mark
        code = log.last_code
        phase = _PHASES.get(code, "other")
        frames = stack_of(self._main)
        # An event is marked before its code is there, so that the code is looked at once more too.
        if log.mark != mark or log.last_code != code:
            return  # the program went on in between: the stack may be of another phase
        if not frames or places.is_probes(frames[0].f_code.co_filename):
            return  # what the probe itself does is no time of the program's
        leaf = frames[0].f_code
        users = next((f for f in frames if places.is_users(f.f_code.co_filename)), None)
        if users is None:
            return
        line = users.f_lineno or users.f_code.co_firstlineno
        where = (users.f_code.co_filename, line, _function(frames[frames.index(users) :]))
        short = "/".join(leaf.co_filename.replace(os.sep, "/").split("/")[-3:])
        lines = session.forward_lines
        behind = any(f.f_lineno > lines.get(f.f_code, sys.maxsize) for f in frames if f.f_lineno)
        row = (where, phase, (short, leaf.co_name), behind)
        if self._growth is not None and phase in (*_BETWEEN, _BEHIND):
            # The loss is recorded there, and a metric in Python that follows it is no part of it.
            self._growth.ask(row, mark, since_sample=phase == _BEHIND)
        else:
            self._counts[(row, False)] += 1

    def _is_to_look(self):
        """Return whether the program learns, or infers so far."""
        return self._session.learned or self._session.inference.may_infer()

    def _forget(self):
        """Drop what was seen of an evaluation, before it was known that the program trains."""
        self._counts.clear()
        if self._growth is not None:
            self._growth.forget()

    def facts(self):
        """Return `stacks` of the process facts, the most frequent first."""
        rows = []
        for row, count in self._counts.copy().most_common(_MOST_ROWS):
            (where, phase, leaf, behind), records_graph = row
            location = places.of_line(*where)
            rows.append({"location": location, "phase": phase, "count": count})
            rows[-1].update(leaf_file=leaf[0], leaf_function=leaf[1])
            rows[-1].update(text=places.text_at(location), records_graph=records_graph)
            rows[-1].update(behind_forward=behind, loops=loops_around(location))
        return {"stacks": rows}


def stack_of(thread):
    """Return frames of a running thread, innermost first; [] where there is no such thread.

    In one call into C, and without a garbage collection, so that nobody else gets the GIL: CPython
    would follow pointers into the stack of a thread that runs on. It crashed.
    """
    innermost = map(dict.get, itertools.starmap(sys._current_frames, [()]), [thread])
    frames = []
    _paused[0] = _COLLECTS_THERE and gc.isenabled()
    if _paused[0]:
        gc.disable()
    try:
        frames.extend(itertools.accumulate(itertools.chain(innermost, _OUTWARD), getattr))
    except AttributeError:
        pass  # of the None beyond the outermost
    finally:
        _collect_again()
    return frames[:-1] if frames and frames[-1] is None else frames


def _collect_again():
    """Collect garbage again, also in a process that the program forked meanwhile."""
    if _paused[0]:
        _paused[0] = False
        gc.enable()


def _function(frames):
    """Return the first frame's function; for a comprehension the one that it stands in."""
    first = frames[0].f_code
    around = (frame.f_code for frame in frames)
    inside = itertools.takewhile(lambda code: code.co_filename == first.co_filename, around)
    names = (code.co_name for code in inside if code.co_name not in _COMPREHENSIONS)
    return next(names, first.co_name)


def install(session):
    """Start sampling, where the plan wants it."""
    if session.plan.get("sample_stacks"):
        session.registries += [Stacks(session), GrownObjects(session)]
        session.when_device_rests.append(lambda: session.log.flush(wait=True))
        session.when_observed.append(session.log.end_device_times)
