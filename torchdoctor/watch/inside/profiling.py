"""Profiles a few steps now and then and when they became slower, in 0.5 % of the run's time."""

import os
import time

from ...probe.accelerator import keep_cupti
from . import layout

_SHARE = 0.005
_STEPS = 3
_FIRST_GUESS_S = 2.0  # that a window takes, with its start and its file
_LEAST_GAP_S = 600.0
_MOST_BYTES = 10_000_000  # of all its traces


class Profiling:
    """Profiler windows of one process; the lowest rank of a host has them."""

    def __init__(self, watch):
        self._watch = watch
        self.forget()
        self._began_s, self._last_s = time.monotonic(), 0.0
        self._cost_s = _FIRST_GUESS_S
        self._bytes = 0
        self._left = 0
        self._spent_s = 0.0
        self.told = self._answered = 0  # changes: so far, and at the last window
        local = os.environ.get("LOCAL_RANK", "0")
        self.wanted = bool(watch.plan.get("profile")) and local == "0"

    def forget(self):
        """Leave a window to the parent, in a forked child."""
        self.profiler = None  # that is open

    def boundary(self, now, step):
        """Open or close a window between two steps."""
        if self.profiler is not None:
            self._watch.log.flag_at_boundary(layout.PROFILED)  # also the step after it
            self._watch.log.due_ns = 0  # each boundary counts now
            self._left -= 1
            if self._left <= 0:
                self._close(step)
        elif self.wanted:
            self._open_if_due()

    def _open_if_due(self):
        now_s = time.monotonic()
        is_asked = self.told > self._answered or now_s - self._last_s >= _LEAST_GAP_S
        if not is_asked or self._spent_s + self._cost_s > _SHARE * (now_s - self._began_s):
            return
        torch = self._watch.torch
        self._last_s = now_s
        self._answered = self.told
        if torch.autograd._profiler_enabled():
            return  # the program has a profiler of its own
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._watch.accelerator.is_used():
            activities = list(torch.profiler.supported_activities())
            keep_cupti()
        self.profiler = torch.profiler.profile(activities=activities)
        self.profiler.start()
        self._left, self._watch.log.due_ns = _STEPS, 0
        self._watch.log.flag_at_boundary(layout.PROFILED)

    def _close(self, step):
        profiler, self.profiler = self.profiler, None
        profiler.stop()
        name = os.path.join("traces", self._watch.keeper.stem + "-%d.json.gz" % step)
        path = os.path.join(self._watch.keeper.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        profiler.export_chrome_trace(path)
        size = os.path.getsize(path)
        self._bytes += size
        took_s = time.monotonic() - self._last_s
        self._spent_s += took_s
        self._cost_s = max(self._cost_s, took_s)
        self.wanted = self._bytes + size < _MOST_BYTES
        self._watch.event("profile", name, took_s)

    def at_exit(self):
        """Close what is open: a running profiler would crash a program that ends."""
        if self.profiler is not None:
            profiler, self.profiler = self.profiler, None
            profiler.stop()
