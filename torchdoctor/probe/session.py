"""The state of the probe in one process: its plan, its log, its errors, and when it flushes."""

import functools
import os
import sys
import time

from . import step_log
from .program import load_fixes

_FACTS_EVERY_S = 2.0
_MOST_ERRORS = 20


class Session:
    """One process of the program. Hooks read `on` first: False costs one attribute look-up.

    Args:
        plan: the plan file's content.
        torch: the user's torch module.
    """

    def __init__(self, plan, torch):
        self.plan = plan
        self.torch = torch
        self.channel = plan["channel"]
        self.programs = []
        self.registries = []  # objects with facts() -> dict, merged into the process facts
        self.errors = []
        self.window = None
        self.models = self.optimizers = self.loaders = None  # set by their hooks
        self.explicit_steps = False
        self.retain_graph = 0
        self.backward_location = False
        self.forget = []  # called in a forked child
        self._start()

    def _start(self):
        self.pid = os.getpid()
        self.on = True
        self.log = step_log.EventLog(self.channel, self.pid, self._flush_due)
        self.learned = 0  # backwards and optimizer steps so far
        self.batches = 0
        self.first_batch_done = False
        self.first_step_s = None
        self._next_facts_s = 0.0
        self._checked_worker = False

    def add(self, code, ident, value):
        """Append an event to the log of this process (a forked child has another one)."""
        self.log.add(code, ident, value)

    def load_fixes(self):
        """Load and apply the plan's fixes; the user's code has not run yet."""
        self.programs = load_fixes(self.torch, self.plan.get("fixes") or [], self.plan)

    def after_fork(self):
        """A forked child logs to files of its own; a loader worker logs nothing."""
        self._start()
        for function in self.forget:
            function()

    def fail(self, where, error):
        """Remember an error of the probe's own; the program goes on."""
        if len(self.errors) < _MOST_ERRORS:
            self.errors.append("%s: %s: %s" % (where, type(error).__name__, error))

    def guarded(self, function):
        """Wrap a hook body of ours so that it can never raise into the program."""

        @functools.wraps(function)
        def guarded(*args):
            try:
                return function(*args)
            except Exception as error:
                self.fail(function.__name__, error)
                return None

        return guarded

    def window_over(self):
        """Whether nothing is being timed any more, so that the device may be read."""
        return self.window is not None and self.window.over

    def hide_frames(self, error):
        """An exception passes through a wrapper of ours, which goes on with a bare `raise`.

        That adds no frame of its own again, except on Python 3.10, so logged tracebacks are clean
        too; on 3.10 only what the default hook prints is.
        """
        trace = error.__traceback__
        if trace is not None and trace.tb_next is not None:
            error.__traceback__ = trace.tb_next
        if sys.version_info >= (3, 11):
            return
        from . import tracebacks

        tracebacks.install()

    def is_loader_worker(self):
        """Whether this process is a DataLoader's worker, forked or spawned."""
        worker = sys.modules.get("torch.utils.data._utils.worker")
        return worker is not None and getattr(worker, "_worker_info", None) is not None

    def first_batch(self):
        """At the first training batch: the user's set-up is done, switches may be overruled."""
        if self.first_batch_done:
            return
        self.first_batch_done = True
        for program in self.programs:
            for function in program.first_batch_functions:
                program.guarded(function)

    def learning(self, now_ns=None):
        """A backward or an optimizer step has ended; now and then a good moment to flush.

        `now_ns`: of `perf_counter_ns`, where the caller has just asked the clock.
        """
        self.learned += 1
        if self.first_step_s is None:
            self._flush_when_child_ends()
            self.first_step_s = time.perf_counter() - _STARTED_S
            self.write_facts()
        elif (time.perf_counter() if now_ns is None else now_ns * 1e-9) > self._next_facts_s:
            self.flush()

    def _flush_when_child_ends(self):
        """multiprocessing ends a forked child by os._exit, after its own finalizers only."""
        util = sys.modules.get("multiprocessing.util")
        process = sys.modules.get("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, self.at_exit, exitpriority=0)

    def _flush_due(self):
        """Four times a second: events only, so that a kill loses little."""
        if self._may_write():
            self._write(self.log.flush)

    def _write(self, function):
        """A full disk or a folder that vanished costs what was logged, never the program."""
        try:
            function()
        except Exception as error:
            self.fail("write", error)

    def _may_write(self):
        """False in a loader worker, which switches itself off at its first attempt."""
        if not self._checked_worker:
            self._checked_worker = True
            if self.is_loader_worker():
                self.on = False
        return self.on

    def flush(self):
        """Write events, losses and facts."""
        if not self._may_write():
            return
        self._write(self.log.flush)
        for registry in self.registries:
            write = getattr(registry, "write", None)
            if write is not None:
                self._write(lambda write=write: write(self.channel, self.pid))
        self.write_facts()

    def write_facts(self):
        """Rewrite `process-<pid>.json` atomically."""
        if not self._may_write():
            return
        from . import facts

        self._next_facts_s = time.perf_counter() + _FACTS_EVERY_S
        try:
            facts.write(self)
        except Exception as error:
            self.fail("write_facts", error)

    def at_exit(self):
        """A program that ends by itself loses nothing."""
        if os.getpid() == self.pid and self.on and self.learned:
            try:
                self.window.at_exit()
                self.flush()
            except Exception as error:
                self.fail("at_exit", error)

    def watch_hard_exits(self):
        """os._exit skips every exit handler, and some programs end by it."""
        old = os._exit

        @functools.wraps(old)
        def _exit(status):
            self.at_exit()
            old(status)

        os._exit = _exit


_STARTED_S = time.perf_counter()
STARTED_UNIX_S = time.time()


def seconds_since_start():
    """Seconds since the probe was loaded, which is when torch was imported."""
    return time.perf_counter() - _STARTED_S
