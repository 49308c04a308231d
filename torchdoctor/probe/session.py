"""The state of the probe in one process: its plan, its log, its errors, and when it flushes."""

import functools
import os
import sys
import time

from . import dynamo_frames, stacks, step_log, wrapping
from .accelerator import Accelerator
from .fixkit.program import load_fix
from .hooks import flag_hooks, loader_hooks, model_hooks, optimizer_hooks
from .hooks.backward_hooks import Passes
from .hooks.captured_graphs import CapturedGraphs
from .hooks.entry_points import EntryPoints
from .hooks.inference_hooks import Inference
from .hooks.scaled_losses import ScaledLosses
from .measure import facts
from .window import Window

_FACTS_EVERY_NS = 2_000_000_000
_MOST_ERRORS = 20
_STARTED_S = time.perf_counter()
_STARTED_UNIX_S = time.time()


class Session:
    """One process of the program. Hooks read `on` first: False costs one attribute look-up."""

    guarded = wrapping.guarded
    hide_frames = wrapping.hide_frames

    def __init__(self, plan, torch):
        self.plan = plan
        self.torch = torch
        self.channel = plan["channel"]
        self.programs = []  # fixes that are switched on: all of them, but in a switching launch
        self.arms = []  # of a switching launch: lists of fixes that are switched together
        self.registries = []  # objects with facts() -> dict, merged into the process facts
        self.errors = []
        # Whether phases are logged and models looked at: not in timed launches.
        self.phases = bool(plan.get("phases", True))
        # Fetches alone say where an iteration begins and how many samples it has.
        boundary = plan.get("boundary") or {}
        self.sparse = not self.phases and boundary.get("kind") == "loader"
        # By the user's word, where nothing else shows that something is learned.
        by_batch = boundary.get("learned_by") == "batch"
        self.batches_learn = bool(plan.get("batches_learn")) or by_batch
        self.flags = flag_hooks.Flags(self)
        self.retain_graph = 0
        self.backward_location = False
        self.gradient_location = None  # of the first gradient without a backward
        self.forget = []  # called in a forked child
        self.when_learning = []  # called once the first backward or optimizer step has ended
        self.when_flushing = []
        self.when_due = []  # called in the main thread a few times a second
        self.when_device_rests = []  # called where the device has been waited for anyway
        self.when_observed = []  # called before what only looks on is disturbed
        self.accelerator = Accelerator(torch)
        self.synchronise = self.accelerator.wait
        self._start()
        where = self.channel, self.number, self._flush_due
        sampled = plan.get("sample_stacks")
        self.log = stacks.MarkedLog(*where, self) if sampled else step_log.EventLog(*where)
        self.started_unix_s = _STARTED_UNIX_S
        self.window = Window(self)
        self.inference = Inference(self)
        self.models = model_hooks.Models(self)
        self.loaders = loader_hooks.Loaders(self)
        self.optimizers = optimizer_hooks.Optimizers(self)
        self.passes = Passes(self)
        self.scaled_losses = ScaledLosses(self)
        self.graphs = CapturedGraphs(self)
        self.entries = EntryPoints(self)
        self.forward_lines = {}  # code that calls a model -> the last line that does
        self.registries += [self.models, self.loaders, self.optimizers, self.passes]
        if self.phases:
            self.guarded(self.log.create)()

    def _start(self):
        self.pid = os.getpid()
        # In names of files, before the pid: a container on another node may have the same pids.
        self.number = int.from_bytes(os.urandom(4), "big") * 10**7 + self.pid
        self.on = True
        self.learned = 0  # backwards and optimizer steps so far
        self.batches = 0
        self.first_batch_done = False
        self.first_step_s = None
        self.stood_still_s = 0.0  # before that, while another process had the turn
        self.facts_due_ns = 0
        self._checked_worker = False

    def load_fixes(self):
        """Load and apply the plan's fixes; the user's code has not run yet."""
        self.programs = [load_fix(self, entry) for entry in self.plan.get("fixes") or ()]
        for entries in (self.plan.get("switch") or {}).get("arms", ()):
            self.arms.append([load_fix(self, entry, switched=True) for entry in entries])

    def all_programs(self):
        """Return every fix of the plan, switched on or not; those of `arms` in their order."""
        return [*(p for arm in self.arms for p in arm)] if self.arms else self.programs

    def tell(self, event, *args):
        """Call what the fixes that are on want to be called at an event."""
        for program in self.programs:
            program.call(event, *args)

    def ask(self, event, *args):
        """Return the first answer that a fix that is on has to an event; None: none has."""
        for program in self.programs:
            for function in program.functions.get(event, ()):
                if (answer := program.guarded(function, *args)) is not None:
                    return answer
        return None

    def after_fork(self):
        """Begin anew in a forked child: it logs to files of its own, a loader worker nothing."""
        self._start()
        self.log.restart(self.number)
        for function in self.forget:
            function()

    def fail(self, where, error):
        """Remember an error of the probe's own; the program goes on."""
        if len(self.errors) < _MOST_ERRORS:
            self.errors.append("%s: %s: %s" % (where, type(error).__name__, error))

    def device_rests(self):
        """Read what was kept on the device: it has been waited for, and nothing is timed now."""
        for function in self.when_device_rests:
            self.guarded(function)()

    def is_loader_worker(self):
        """Return whether this process is a DataLoader's worker, forked or spawned."""
        worker = sys.modules.get("torch.utils.data._utils.worker")
        return worker is not None and getattr(worker, "_worker_info", None) is not None

    def first_batch(self):
        """Let fixes overrule switches: at the first training batch the user's set-up is done."""
        if not self.first_batch_done:
            self.first_batch_done = True
            self.tell("first batch")

    def learning(self, now_ns):
        """Note that a backward or optimizer step has ended; now and then a good moment to flush."""
        self.learned += 1
        if self.inference.looks:
            self.inference.trains()
        if now_ns > self.facts_due_ns:
            self.learning_due()

    def inferred(self, now_ns):
        """Note that a model was called in a program that infers: a step of it does that."""
        self.learned += 1
        if now_ns > self.facts_due_ns:
            self.learning_due()

    @dynamo_frames.quietly
    def learning_due(self):
        """Write facts at the first backward or step, and then when they are due."""
        if self.first_step_s is None:
            self._flush_when_child_ends()
            for function in self.when_learning:
                function()
            self.first_step_s = time.perf_counter() - _STARTED_S
            self.write_facts()
        else:
            self.flush()

    def _flush_when_child_ends(self):
        """Flush in a forked child, which multiprocessing ends by os._exit after its finalizers."""
        process = sys.modules.get("multiprocessing.process")
        if "multiprocessing.util" in sys.modules and process.parent_process() is not None:
            sys.modules["multiprocessing.util"].Finalize(None, self.at_exit, exitpriority=0)

    @dynamo_frames.quietly
    def _flush_due(self):
        """Write events only, four times a second, so that a kill loses little."""
        if self._may_write():
            self.guarded(self.log.flush)()
            self.guarded(self.window.look_for_request)()
            for function in self.when_due:
                self.guarded(function)()

    def end_observing(self):
        """Keep what was observed so far as it is: a profiler window begins."""
        self.log.add(step_log.OBSERVED)
        self.synchronise()
        self.device_rests()
        self.flush()
        self.guarded(facts.write)(self, "observed")
        for function in self.when_observed:
            self.guarded(function)()

    def _may_write(self):
        """Return False in a loader worker, which switches itself off at its first attempt."""
        if not self._checked_worker:
            self._checked_worker = True
            if self.is_loader_worker():
                self.on = False
        return self.on

    def flush(self):
        """Write events, losses and facts."""
        if not self._may_write():
            return
        for function in (self.log.flush, *self.when_flushing):
            self.guarded(function)()  # a full disk costs what was logged, never the program
        self.write_facts()

    def write_facts(self):
        """Rewrite `process-<number>.json` atomically."""
        if self._may_write():
            self.facts_due_ns = time.perf_counter_ns() + _FACTS_EVERY_NS
            self.guarded(facts.write)(self)

    def at_exit(self):
        """Write what is left: a program that ends by itself loses nothing."""
        if os.getpid() == self.pid and self.on and self._has_seen_any():
            closing = [program.close for program in self.all_programs()]
            for function in (self.window.at_exit, *closing, self.device_rests, self.flush):
                self.guarded(function)()

    def _has_seen_any(self):
        called = self.models.seen_forward or any(self.entries.calls)
        return bool(self.learned or self.batches or called)

    def watch_hard_exits(self):
        """Flush before os._exit, which skips every exit handler and by which some programs end."""
        old = os._exit

        @functools.wraps(old)
        def _exit(status):
            self.at_exit()
            old(status)

        os._exit = _exit
