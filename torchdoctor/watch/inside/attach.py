"""Entry of a watched process: called once torch has been imported (`probe.sitecustomize`)."""

import atexit
import functools
import json
import os
import sys
import weakref
from types import SimpleNamespace

from ...probe import dynamo_frames, step_log, wrapping
from ...probe.accelerator import Accelerator
from ...probe.hooks import model_hooks
from ...probe.hooks.captured_graphs import CapturedGraphs
from ...probe.hooks.entry_points import EntryPoints
from ...probe.hooks.inference_hooks import FirstCall
from . import hooks
from .inferring import Inference
from .keeping import Keeper
from .profiling import Profiling
from .resting import Rests
from .stepping import StepLog
from .trackers import Trackers

_watch = None
_ALLOWED_FAILURES = 3  # of hooks, before the probe removes itself


class Watch:
    """One watched process: what the hooks share. `on` False: every hook passes through."""

    guarded = wrapping.guarded
    hide_frames = wrapping.hide_frames
    phases = True
    programs = ()
    arms = ()
    sparse = False
    backward_location = gradient_location = None

    def __init__(self, torch, plan):
        self.torch = torch
        self.plan = plan
        self.on = True
        self.resting = False
        self._failures = 0
        self._removed = False
        self.accelerator = Accelerator(torch)
        self.passes = SimpleNamespace(on=False)
        self.window = SimpleNamespace(event=lambda *_: None)
        self.inference = Inference(self)
        self.forget = []
        self.registries = []
        nesting = hooks.NestingOfThread()  # requests may be handled by a thread each
        self.entries = EntryPoints(self, nesting)
        self.keeper = Keeper(self)
        self.loaders = hooks.Loaders(self)
        self.log = StepLog(
            self.keeper.row, self.keeper.event, self.loaders.place_of, plan.get("step_on")
        )
        self.log.on_learning = self._learns
        self.log.on_infers = self.keeper.start
        self.log.on_found, self.log.has_compiled = self.keeper.steps_found, self._has_compiled
        self.log.has_room = self.keeper.has_room
        self._graphs = 0
        self.models = model_hooks.Models(self)
        self.models.nesting = nesting
        self.models._calls = hooks.Calls(self, self.models)
        self.exchanges, self.optimizers = hooks.Exchanges(self), None
        self.optimizers_made = weakref.WeakSet()
        self.graphs = CapturedGraphs(self)
        self.backwards = hooks.Backwards(self)
        self.rests, self.profiling = Rests(self), Profiling(self)
        self.log.at_boundary += [self.profiling.boundary, self.rests.boundary]

    def install(self, importing):
        """Hook into torch, each part by itself."""
        parts = (
            ("loaders", self.loaders.install),
            ("optimizers", lambda: hooks.install_optimizers(self, self.rests)),
            ("backward", self.backwards.install),
            ("graphs", self.graphs.install),
            ("exchanges", self.exchanges.install),
            ("checkpoints", lambda: hooks.install_checkpoints(self, importing)),
            ("pauses", lambda: hooks.install_pauses(self)),
            ("models", lambda: FirstCall(self).arm()),
            ("entry points", lambda: self.entries.install(importing)),
        )
        if self.plan["watch"].get("log_to_tracker"):
            parts += (("trackers", lambda: Trackers(self).install(importing)),)
        for name, install in parts:
            try:
                install()
            except Exception as error:  # another torch: what it has no place for is not seen
                self.event("failed", "%s: %s: %s" % (name, type(error).__name__, error))

    def tell(self, event, *args):
        """Let a new model be watched for exchanges."""
        if event == "model":
            self.exchanges.watch_model(args[0])

    def first_batch(self):
        """Do nothing: no fix waits for it."""

    def learning(self, now_ns):
        """Do nothing: the log tells of which gradients something is learned."""

    def fail(self, where, error):
        """Note a failure of ours; after the third the probe removes itself."""
        self._failures += 1
        reason = "%s: %s: %s" % (where, type(error).__name__, error)
        if self._failures < _ALLOWED_FAILURES:
            self.event("failed", reason)
        elif not self._removed:
            self._removed = True
            self.on = False
            self.resting = False
            self.keeper.failed(reason)

    def _learns(self, *_):
        """Note that something is learned."""
        self.inference.trains()
        self.keeper.start()

    def event(self, kind, text="", seconds=0.0):
        """Note an event that happens now."""
        self.keeper.event(step_log.perf_counter_ns(), kind, text, seconds)

    def _has_compiled(self):
        """Return whether torch.compile made graphs since this was asked last, and note them."""
        utils = sys.modules.get("torch._dynamo.utils")
        try:
            graphs = utils.counters["stats"]["unique_graphs"] if utils is not None else 0
        except (AttributeError, KeyError, TypeError):
            return False  # of another torch
        before, self._graphs = self._graphs, graphs
        return graphs > before

    def wake(self):
        """End a stretch without hooks."""
        self.guarded(self.rests.end)(True)

    def after_fork(self):
        """Begin anew in a forked child; a loader worker never learns, and so writes nothing."""
        self.on = not self._removed
        self.resting = False
        self.log.restart(os.getpid())
        self.inference.restart()
        for function in self.forget:
            function()
        self.rests.forget()
        self.profiling.forget()
        self.keeper.restart()

    def at_exit(self):
        """Write what is left."""
        for function in (self.profiling.at_exit, self.log.end, self.keeper.end):
            self.guarded(function)()


def attach(torch, importing):
    """Watch this process; `importing` calls back when modules are imported."""
    global _watch
    with open(os.environ["TORCHDOCTOR_PLAN"], encoding="utf-8") as file:
        plan = json.load(file)
    dynamo_frames.keep_out(torch, importing)
    watch = _watch = Watch(torch, plan)
    sys.modules["_torchdoctor_probe_attach"] = sys.modules[__name__]  # for torchdoctor.step()
    watch.install(importing)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=watch.guarded(watch.after_fork))
    atexit.register(watch.at_exit)
    old = os._exit  # skips every exit handler, and some programs end by it

    @functools.wraps(old)
    def _exit(status):
        watch.at_exit()
        old(status)

    os._exit = _exit


def explicit_step(samples=None):
    """Note a step by `torchdoctor.step()` in the user's code."""
    watch = _watch
    if watch is not None and watch.on:
        size = step_log.UNKNOWN_SIZE if samples is None else int(samples)
        watch.log.add(step_log.EXPLICIT_STEP, 0, size)
