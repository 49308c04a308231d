"""Counts iterations, marks the measured window, runs the profiler window, ends the launch.

Only in launches whose plan names the boundary. An observing launch logs until it is stopped, or
until a file of the channel folder asks for a profiler window at its end, and names the boundary.
"""

import json
import math
import os
import threading
import time

from . import step_log
from .accelerator import keep_cupti
from .fixkit.switching import Switching
from .fixkit.turns import Turns
from .hooks.analysis import ANALYSED_STEPS, Analysis
from .measure import facts

_FEWEST_STEPS = 10  # a window cut short by time has at least these


class Window:
    """The measured window of one process."""

    def __init__(self, session):
        self._session = session
        plan = session.plan
        boundary = session.plan.get("boundary") or {}
        self.kind, self.ident = boundary.get("kind"), boundary.get("ident", 0)
        self._every = max(int(boundary.get("every", 1)), 1)
        self._first = int(plan.get("warmup_steps") or 0)
        self._steps = int(plan.get("measure_steps") or 0)
        self._most_s = plan.get("max_window_s") or math.inf
        self._profile = plan.get("profile")
        self._may_be_asked = bool(plan.get("window_on_request"))
        self._switching = Switching(session) if plan.get("switch") else None
        self._turns = Turns(session) if plan.get("turns") else None
        session.forget.append(self._forget)
        self._forget()

    def _forget(self):
        if self._may_be_asked:  # not of a forked child
            self.kind = self._profile = None
        self.iteration = self._events = 0
        self._learned_at = -1
        self._began_s = self._profiler = self._analysis = None
        # Before this iteration and this time a boundary is nothing but a mark.
        self._plain_until = 0
        self._plain_ns = 0

    def bounds(self, kind):
        """Return whether such events separate iterations, or may do so later."""
        return self.kind == kind or self._may_be_asked

    def look_for_request(self):
        """Begin to count iterations once a profiler window of this process is asked for."""
        if not self._may_be_asked or self.kind is not None:
            return
        path = "%s/window-%d.json" % (self._session.channel, self._session.number)
        if not os.path.exists(path):
            return
        with open(path, encoding="utf-8") as file:
            wanted = json.load(file)
        self._profile, self._first = wanted["profile"], 0
        self.ident, self.kind = wanted["boundary"]["ident"], wanted["boundary"]["kind"]

    def event(self, kind, ident):
        """Take in an event that may be a boundary; hooks call this before they log what begins."""
        if kind != self.kind or (
            ident != self.ident and kind in ("loader", "optimizer", "forward", "entry")
        ):
            return
        session = self._session
        if kind == "loader":
            # Fetching ahead, or evaluating over the training loader, begins no iteration.
            if session.learned == self._learned_at:
                return
            self._learned_at = session.learned
        events = self._events
        number = self.iteration
        self._events = events + 1
        if self._every > 1 and events % self._every:
            return
        try:
            if number < self._plain_until and step_log.perf_counter_ns() < self._plain_ns:
                self.iteration = number + 1
                session.log.add(step_log.BOUNDARY, 0, number)
                return
            self._boundary()
        except Exception as error:
            session.fail("window", error)

    def _boundary(self):
        session = self._session
        number = self.iteration
        if self._may_be_asked and number == 0:
            session.end_observing()
        self.iteration += 1
        if self._profile is None and (self._switching or self._turns):
            (self._switch if self._switching else self._turns.boundary)(number)
            return
        if self._profile is None and number == self._first:
            session.synchronise()
            self._began_s = time.perf_counter()
            session.log.add(step_log.WINDOW_BEGIN)
        done = number - self._first
        spent_s = 0.0 if self._began_s is None else time.perf_counter() - self._began_s
        long = spent_s >= self._most_s and done >= _FEWEST_STEPS
        over = self._began_s is not None and (done >= self._steps or long)
        if over:
            session.synchronise()
        session.log.add(step_log.BOUNDARY, 0, number)
        if over:
            session.log.add(step_log.WINDOW_END, 0, done)
            self._finish("window")
        elif self._profile is not None:
            self._profile_step(number)
        elif self._began_s is not None:
            # Only mark boundaries until the window may be over.
            self._plain_until = self._first + self._steps
            self._plain_ns = (self._began_s + self._most_s) * 1e9

    def _switch(self, number):
        log = self._session.log
        if number < self._first:
            log.add(step_log.BOUNDARY, 0, number)
            return
        if number == self._first:
            log.add(step_log.WINDOW_BEGIN)
        if threading.current_thread() is not threading.main_thread():
            # A thread that fetches ahead: what is switched there changes in the middle of a step.
            self._finish("thread")
        elif self._switching.boundary(number):
            log.add(step_log.WINDOW_END, 0, number - self._first)
            self._finish("switch")

    def _finish(self, reason):
        session = self._session
        session.device_rests()
        session.flush()
        facts.write_json("%s/done-%d.json" % (session.channel, session.number), {"reason": reason})
        if session.plan.get("after") == "continue":
            session.on = False
            return
        while True:
            # The launch is over and will be killed; nothing the script catches may get it going.
            try:
                time.sleep(3600)
            except BaseException:
                continue

    def _profile_step(self, number):
        wanted = self._profile
        if self._analysis is not None:
            if self._analysis.step():
                self._finish("profile")
        elif number == self._first:
            self._start_profiler(wanted)
        elif self._profiler is not None:
            self._profiler.step()
            if number - self._first >= wanted["wait"] + wanted["warmup"] + wanted["active"]:
                self._session.synchronise()
                self._export()

    def _start_profiler(self, wanted):
        torch = self._session.torch
        profiler = self._session.torch.profiler
        if torch.autograd._profiler_enabled():
            reason = "the program runs a profiler of its own, so no profiler window was taken"
            self._session.fail("profiler", RuntimeError(reason))
            self._finish("profile")
            return
        available = self._session.accelerator.is_available()
        supported = profiler.supported_activities() if available else ()
        if available:
            keep_cupti()  # the analysed steps may replay graphs
        activities = [*{profiler.ProfilerActivity.CPU, *supported}]
        steps = {name: wanted[name] for name in ("wait", "warmup", "active")}
        self._profiler = profiler.profile(
            activities=activities,
            schedule=profiler.schedule(**steps, repeat=1),
            record_shapes=bool(wanted.get("record_shapes")),
            with_stack=bool(wanted.get("with_stack")),
            on_trace_ready=lambda _: None,
        )
        self._profiler.start()

    def at_exit(self):
        """Keep what was profiled where the program ends: a running profiler would crash it."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            recording = profiler.current_action.name.startswith("RECORD")
            profiler.stop()
            if recording:
                self._keep(profiler)

    def _export(self):
        profiler, self._profiler = self._profiler, None
        self._keep(profiler)
        if self._profile.get("analyse"):
            loader = self.ident if self.kind == "loader" else None
            steps = self._profile.get("analysed_steps", ANALYSED_STEPS)
            self._analysis = Analysis(self._session, loader, steps)
            self._analysis.start(profiler, self._profile["active"])
        else:
            self._finish("profile")

    def _keep(self, profiler):
        session = self._session
        path, part = (
            f"{session.channel}/{kind}-{session.number}.json.gz" for kind in ("trace", "part")
        )
        try:
            profiler.export_chrome_trace(part)
            os.replace(part, path)
        except Exception as error:
            session.fail("profiler", error)
