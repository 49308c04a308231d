"""Samples of the main thread's Python stack, by phase; only in launches that are not timed."""

import gc
import itertools
import linecache
import os
import sys
import threading
import time
from collections import Counter

from . import places, step_log
from .hooks import graph_growth

_MOST_ROWS = 200  # a simulator's time is spread over many functions
_LONGEST_LINE = 200
_SWITCH_S = 1e-5
_OUTWARD = ("f_back",) * 500  # the deepest stack that is looked through
_COLLECTS_THERE = sys.version_info < (3, 12)
_paused = [False]  # whether the garbage collection was on and waits
_COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
_PHASES = {
    step_log.LOADER_START_BEGIN: "loader",
    step_log.FETCH_BEGIN: "loader",
    step_log.FORWARD_BEGIN: "forward",
    step_log.BACKWARD_BEGIN: "backward",
    step_log.GRADIENT_BEGIN: "backward",
    step_log.OPTIMIZER_BEGIN: "optimizer",
    step_log.FETCH_END: "before_forward",
    step_log.OPTIMIZER_END: "after_step",
    step_log.BACKWARD_END: "after_backward",
    step_log.GRADIENT_END: "after_backward",
    step_log.FORWARD_END: "other",
    step_log.BOUNDARY: "before_forward",
    step_log.LEARNED: "before_forward",
}
# In these a forward may run that no event shows. Not after a forward: what is drawn from its output
# is recorded, and the environment of reinforcement learning that runs next is no model.
_BETWEEN = ("before_forward", "after_step", "after_backward")


class Stacks:
    """Counts of (file, line, function), phase, leaf, and whether a graph grew."""

    def __init__(self, session):
        self._session = session
        self._interval_s = float(session.plan.get("stack_interval_s") or 0.005)
        self._counts = Counter()
        self._main = threading.main_thread().ident
        log = session.log
        self._growth = None
        if log.sequence is not None:
            self._growth = graph_growth.Growth(log, self._counts, session.torch)
        # Pure Python keeps the GIL for 5 ms by default, and torch's operators let go of it: samples
        # would all fall on the first operator after a piece of Python, and none on the Python.
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
        session.forget.append(_collect_again)
        self._thread = threading.Thread(target=self._run, name="torchdoctor-stacks", daemon=True)
        self._thread.start()

    def _run(self):
        while self._session.on and os.getpid() == self._session.pid:
            time.sleep(self._interval_s)
            try:
                self._sample()
            except Exception as error:
                self._session.fail("stacks", error)
                return

    def _sample(self):
        session = self._session
        if not session.learned:
            return
        frames = stack_of(self._main)
        mark = session.log.mark
        phase = _PHASES.get(session.log.last_code, "other")
        if not frames or places.is_probes(frames[0].f_code.co_filename):
            return  # what the probe itself does is no time of the program's
        leaf = frames[0].f_code
        while frames and not places.is_users(frames[0].f_code.co_filename):
            frames.pop(0)
        if not frames:
            return
        users = frames[0]
        line = users.f_lineno or users.f_code.co_firstlineno
        where = (users.f_code.co_filename, line, _function(frames))
        short = "/".join(leaf.co_filename.replace(os.sep, "/").split("/")[-3:])
        row = (where, phase, "%s %s" % (short, leaf.co_name))
        if self._growth is not None and phase in _BETWEEN:
            self._growth.ask(row, mark)
        else:
            self._counts[(row, False)] += 1

    def facts(self):
        """Return `stacks` of the process facts, the most frequent first."""
        rows = []
        for row, count in self._counts.copy().most_common(_MOST_ROWS):
            ((file, line, function), phase, leaf), records_graph = row
            location = {"file": os.path.abspath(file), "line": line, "function": function}
            text = linecache.getline(file, line).strip()[:_LONGEST_LINE]
            rows.append(
                {
                    "location": location,
                    "phase": phase,
                    "count": count,
                    "leaf": leaf,
                    "text": text,
                    "records_graph": records_graph,
                }
            )
        return {"stacks": rows}


def stack_of(thread):
    """Return frames of a running thread, innermost first; [] where there is no such thread.

    In one call into C, and without a garbage collection, so that nobody else gets the GIL: CPython
    makes frame objects for what it finds, which before 3.12 may collect garbage right there. What
    is called then lets the thread run on, and CPython follows pointers into its reused stack: it
    crashed.
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
    file, name = frames[0].f_code.co_filename, frames[0].f_code.co_name
    for outer in frames:
        if outer.f_code.co_filename != file:
            break
        if outer.f_code.co_name not in _COMPREHENSIONS:
            return outer.f_code.co_name
    return name


def install(session):
    """Start sampling, where the plan wants it."""
    if session.plan.get("sample_stacks"):
        session.registries.append(Stacks(session))
