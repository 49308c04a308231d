"""Pauses by Python's garbage collector; those too short to matter are not logged."""

import gc

from .. import step_log

_LEAST_NS = 100_000


def install(session):
    """Register a collector callback."""
    began = [0]

    def callback(phase, info):
        if phase == "start":
            began[0] = step_log.perf_counter_ns()
            return
        ended = step_log.perf_counter_ns()
        if session.on and ended - began[0] >= _LEAST_NS:
            generation = info.get("generation", 0)
            # Not `add`: what the collector interrupted (a fetch, a forward) goes on as that.
            session.log.add_at(step_log.GC_BEGIN, 0, began[0], generation)
            session.log.add_at(step_log.GC_END, 0, ended, generation)

    gc.callbacks.append(session.guarded(callback))
