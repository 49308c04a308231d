"""Entry of the probe: hooks into torch once it has been imported."""

import atexit
import json
import os
import sys

from . import dynamo_frames, seeds, stacks, step_log
from .hooks import (
    backward_hooks,
    compile_log,
    copy_hooks,
    double_calls,
    file_reads,
    loader_hooks,
    optimizer_hooks,
)
from .session import Session

_session = None


def attach(torch, watch):
    """Hook into `torch`, each part by itself; `watch` calls back when modules are imported."""
    global _session
    with open(os.environ["TORCHDOCTOR_PLAN"], encoding="utf-8") as file:
        plan = json.load(file)
    dynamo_frames.keep_out(torch, watch)
    session = _session = Session(plan, torch)
    sys.modules["_torchdoctor_probe_attach"] = sys.modules[__name__]
    parts = (
        ("seeds", lambda: seeds.install(session, watch)),
        ("flags", session.flags.install),
        ("fixes", session.load_fixes),
        ("loaders", lambda: loader_hooks.install(session)),
        ("optimizers", lambda: optimizer_hooks.install(session)),
        ("backward", lambda: backward_hooks.install(session)),
        ("graphs", session.graphs.install),
        ("inference", session.inference.install),
        ("entries", lambda: session.entries.install(watch)),
        ("copies", lambda: copy_hooks.install(session)),
        ("double", lambda: double_calls.install(session)),
        ("gc", lambda: copy_hooks.install_pauses(session)),
        ("stacks", lambda: stacks.install(session)),
        ("files", lambda: file_reads.install(session, watch)),
        ("compiling", lambda: compile_log.install(session)),
    )
    for name, install in parts:
        try:
            install()
        except Exception as error:
            session.fail(name, error)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=session.guarded(session.after_fork))
    atexit.register(session.at_exit)
    session.watch_hard_exits()


def explicit_step(samples=None):
    """Note a step by `torchdoctor.step()` in the user's code."""
    session = _session
    if session is None or not session.on:
        return
    value = step_log.UNKNOWN_SIZE if samples is None else int(samples)
    now = session.log.add(step_log.EXPLICIT_STEP, 0, value)
    session.window.event("explicit", 0)
    session.learning(now)
