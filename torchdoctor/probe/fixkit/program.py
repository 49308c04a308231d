"""The program as `apply(torch, settings, program)` of a fix is handed it, and how that is called.

The files of a plan's fixes are executed inside the user's process.
"""

import builtins
import contextlib
import functools
import hashlib
import os
import sys
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location

from .. import dynamo_frames, places
from ..accelerator import Accelerator
from ..hooks import file_reads
from ..hooks.compile_log import CompileLog
from ..measure import inferred_inputs, nested
from ..reasons import raised, reason
from ..wrapping import around_steps, stand_in, temporary_count
from . import answered_calls, held_functions, read_redirect, second_loader, training_state
from .gradient_scaling import GradientScaling
from .replayed import Replayed
from .sample_cache import SampleCache

_KERNELS = ("/proc/", "/sys/", "/dev/", "/run/")


class Refusal(Exception):
    """The fix does not apply to this program; its argument is the reason, as data."""


class _GivenUp(Exception):
    """It cannot be switched on in the middle; from its start the program may be run with it."""


class Program:
    """The places where a fix hooks into the program. One instance for each fix of the plan.

    `switched`: it is switched on and off while the program runs; off at first.
    """

    def __init__(
        self, torch, fix, plan=None, switched=False, optimizers=list, loaders=lambda: None
    ):
        plan = self.plan = plan or {}
        self.torch = torch
        self.fix = fix
        self.switched = switched
        self.on = not switched
        self.optimizers = optimizers
        self.loaders = loaders
        self.state = "pending"
        self.why = None  # the reason for its state, as `reasons.reason` makes it
        self.details = {}
        self.functions = {}  # by event: what the hooks call while it is on
        self.second_loader = None
        self.given_back = []  # (loader, batch): its next ones, before it is asked again
        self.modules = []  # the program's root modules, from the moment it is switched on
        # Classes of the probe that a fix may use, which it cannot import.
        self.compile_log, self.replayed = partial(CompileLog, torch), partial(Replayed, torch)
        self.gradient_scaling = partial(GradientScaling, torch, self)
        self.sample_cache = partial(SampleCache, torch)
        self.held_functions = partial(held_functions.HeldFunctions, self)

    is_array = staticmethod(nested.is_array)
    temporary_count = staticmethod(temporary_count)
    is_at = staticmethod(held_functions.is_at)
    undecorated = staticmethod(held_functions.undecorated)
    reason = staticmethod(reason)
    compiled_with_it = staticmethod(dynamo_frames.compiled_for_the_program)

    @property
    def infers(self):
        """Return whether no gradient is computed in this program."""
        return (self.plan.get("boundary") or {}).get("learned_by") == "forward"

    @property
    def accelerator(self):
        """Return the device beside the CPU, as `probe.accelerator` knows it."""
        return Accelerator(self.torch)

    def at(self, event, function):
        """Call a function at an event, while the fix is on.

        "arguments": (module, args, kwargs) -> (args, kwargs), before a root's outermost call.
        "backward", "step": before each backward, before each optimizer step.
        "instead of backward": (tensors) -> True, where that backward is not to be run.
        "gradients": (args, kwargs) -> (result,) in place of a `torch.autograd.grad`, or None.
        "iteration": at each iteration of a switching launch, from the second one on.
        "settled": -> whether a block may begin, for all that it left running.
        "end": once it is switched on no more; it must do no harm a second time.
        """
        self.functions.setdefault(event, []).append(function)

    def refuse(self, fact, **values):
        """Raise `Refusal`: the fix does not apply.

        The fix's `sentences`, or those that all fixes share, hold the template of the fact.
        """
        self.refuse_for(reason(fact, **values))

    def refuse_for(self, why):
        """Raise the like of `refuse` for a reason that was made before."""
        raise Refusal(why)

    def give_up(self, fact, **values):
        """Raise what leaves a fix that is switched in a running program to launches of its own."""
        self.give_up_for(reason(fact, **values))

    def give_up_for(self, why):
        """Raise the like of `give_up` for a reason that was made before; None: it goes on."""
        if why is not None:
            raise _GivenUp(why)

    def before_loader(self, function, only=None, with_second=False):
        """Let function(arguments: dict) change a DataLoader's arguments beforehand.

        `only`: the ident of the loader that is meant; None: every one. `with_second`: in a running
        program, batches come from a second loader with the changed arguments, while it is on.
        """

        def change(arguments, ident):
            if only is None or ident == only:
                function(arguments)

        self.why = self.why or reason("no-loader-made")
        if self.switched and with_second:
            if self.second_loader is None:
                self.second_loader = second_loader.SecondLoader(self)
            self.second_loader.functions.append(change)
            return
        self._only_from_the_start()
        self.at("loader", change)

    def before_optimizer(self, function):
        """Let function(cls, arguments: dict) change an optimizer's arguments before it is made."""
        self._only_from_the_start()
        self.at("optimizer", function)

    def on_model(self, function, undo=None):
        """Call function(module) for each root module at the first batch; `undo(module)`: back."""
        if undo is None:
            self._only_from_the_start()
        self.at("model", function)
        self.at("undo model", undo)

    def around_forward(self, make_context, until="forward"):
        """Enter make_context(module) -> context manager or None before the root's forward.

        It is left at the end of it, or when a backward, the next fetch or an optimizer step begins.
        """
        self.at("contexts until " + until, make_context)

    def around_fetch(self, answer, keep):
        """Take answer(ident, left) -> (batch,) in place of a loader's next one; None: fetch it.

        `left`: batches until the epoch ends; None: nobody can say. () ends it here: the program
        does what it does between epochs, and the next one goes on where its iterator stands.
        keep(ident, batch) sees each batch that was fetched.
        """
        self.at("fetch", answer)
        self.at("fetched", keep)

    def give_back(self, ident, batch):
        """Keep a batch that was not trained with: the loader's next one when the fix is off."""
        self.given_back.append((ident, batch))

    def around_model(self, answer, keep):
        """Take answer(module, args, kwargs) -> (output,) in place of a root's forward, or None.

        keep(module, args, kwargs, output) sees each forward that was run.
        """
        self.at("forward", answer)
        self.at("forward ended", keep)

    def restore_training(self):
        """Put the training's state back to what it was before, when the fix is switched off."""
        kept = []

        def keep():
            if not kept:
                training = self.torch, self.modules, self.optimizers()
                self.give_up_for(training_state.lacking(*training))
                kept.append(training_state.TrainingState(*training))

        self.at_first_batch(keep, lambda: kept and kept.pop().put_back())

    def answered_calls(self):
        """Return an `AnsweredCalls` that is on while this is."""
        calls = answered_calls.AnsweredCalls(self)
        self.at_first_batch(calls.start, calls.stop)
        self.at("iteration", calls.next_iteration)
        return calls

    def around_step(self, before, after=None):
        """Call before(optimizer) and after(optimizer) around each step of each optimizer."""
        self._only_from_the_start()

        def call(function, optimizer):
            if self.usable and function is not None:
                self.guarded(function, optimizer)

        around_steps(self.torch, partial(call, before), partial(call, after))

    def at_first_batch(self, function, undo=None):
        """Call function() once, after the user's set-up; `undo()` also takes back half of it."""
        if undo is None:
            self._only_from_the_start()
        self.at("first batch", function)
        self.at("undo first batch", undo)

    def replace(self, owner, name, make):
        """Set owner.name to make(old), which keeps old's name, documentation and signature."""
        old = getattr(owner, name)
        new = ours = dynamo_frames.pass_through(make(old))
        if self.switched:

            def new(*args, **kwargs):
                return (ours if self.on else old)(*args, **kwargs)

            dynamo_frames.pass_through(new)
        with contextlib.suppress(AttributeError, TypeError):
            new = functools.wraps(old)(new)
        stand_in(self.torch, old, new)
        setattr(owner, name, new)

    @staticmethod
    def calling_frame():
        """Return the frame that called what a fix has replaced; hooks of the probe may lie between.

        Where torch was built for a device, one lies around each `Tensor.to`.
        """
        frame = sys._getframe(2)
        while frame is not None and places.is_ours(frame.f_code.co_filename):
            frame = frame.f_back
        return frame

    def replace_function(self, file, name, make):
        """Call make(old) in place of a function of the program's own, from the first batch on."""
        held = self.held_functions(
            generator=reason("is-a-generator", function=name),
            unheld=reason("held-by-nobody", function=name),
        )
        suits = held_functions.is_at(file, name)
        self.at_first_batch(lambda: held.put(suits, make), held.take_back)

    def _only_from_the_start(self):
        # "failed", not "refused": from its start the program may well be run with it.
        if self.switched:
            raise RuntimeError("it cannot be switched off again in a running program")

    @property
    def usable(self):
        """Return whether it was neither refused nor failed."""
        return self.state in ("pending", "applied")

    def switch_on(self, modules):
        """Take effect on root modules from here on; `usable` says whether it did."""
        self.on = True
        self.modules = modules
        self.call("first batch")
        for module in modules:
            self.call("model", module)

    def switch_off(self, modules):
        """Leave all as it was before; raise what an undo raised: the state is then not known."""
        for undo in reversed(self.functions.get("undo model", ())):
            for module in modules:
                undo(module)
        for undo in reversed(self.functions.get("undo first batch", ())):
            undo()
        self.on = False

    def applied(self, **details):
        """Note that the fix took effect."""
        self.details.update(details)
        if self.state == "pending":
            self.state, self.why = "applied", None  # the reason was why it was pending

    def set_reason(self, fact, **values):
        """Set why the fix is in the state that it is in, as `refuse` does."""
        self.why = reason(fact, **values)

    def is_settled(self):
        """Return True if nothing in the background disturbs a block; also where it failed."""
        settling = self.functions.get("settled", ())
        return all(self.guarded(function) is not False for function in settling)

    def close(self):
        """End what it left running: it is switched on no more."""
        self.call("end")

    def call(self, event, *args):
        """Call what it wants to be called at an event."""
        for function in self.functions.get(event, ()):
            self.guarded(function, *args)

    def guarded(self, function, *args):
        """Call a fix's function; what it raises is this fix's failure, not the program's."""
        try:
            return function(*args)
        except Refusal as refusal:
            self.state, self.why = "refused", refusal.args[0]
        except _GivenUp as given_up:
            self.state, self.why = "failed", given_up.args[0]
        except Exception as error:
            self.state, self.why = "failed", raised(error)
        return None

    def redirect_reads(self, function):
        """Ask function(path: str) for the file to read instead of that absolute path, or None."""
        read_redirect.add(self, function)

    def is_below(self, mount):
        """Return a function: whether an absolute path, links resolved, lies below `mount`."""
        prefix, verdicts = mount.rstrip(os.sep) + os.sep, {}

        def below(path):
            folder = os.path.dirname(path)
            if folder not in verdicts:
                real = os.path.realpath(folder) + os.sep
                verdicts[folder] = real.startswith(prefix) and not real.startswith(_KERNELS)
            return verdicts[folder]

        return below

    def name_of(self, path, *more):
        """Return a name for a file in its state now, and for more values; OSError: it is gone."""
        state = os.stat(path)
        # The very file: a link may have moved to another of the same size and the same instant.
        very = (path, state.st_dev, state.st_ino)
        text = repr((very, state.st_size, state.st_mtime_ns, state.st_ctime_ns, more))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]

    def shared_folder(self, name):
        """Return a folder that all processes of the launch share; it is removed with the launch."""
        folder = os.path.join(self.plan["channel"], "staged", name)
        os.makedirs(folder, exist_ok=True)
        return folder

    def remote_protocol(self, filesystem):
        """Return "s3", "https" of an fsspec file system; None for one whose files are local."""
        protocol = file_reads.protocol_of(filesystem)
        return None if protocol in file_reads.LOCAL_PROTOCOLS else protocol

    def padding_of(self, model):
        """Return the token that a model takes for padding."""
        return inferred_inputs.padding_of(model, self.torch)

    def innermost(self, dataset):
        """Return the data set within torch's Subset and the like."""
        return nested.innermost(dataset, self.torch)

    def read_before(self):
        """Return absolute paths that the observed loop read, in that order; [] if unknown."""
        try:
            with open(self.plan.get("files_read") or "", "rb") as file:
                return [os.fsdecode(line) for line in file.read().split(b"\n") if line]
        except OSError:
            return []

    def facts(self):
        """Return the fix's state as `schema.AppliedFix`."""
        return {name: getattr(self, name) for name in ("fix", "state", "why", "details")}


class _Inert:
    """Stands for every name of torchdoctor that a fix file imports.

    A fix needs them in the tool's process alone; torchdoctor may not be installed in the user's.
    """

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **kwargs):
        return self

    def __iter__(self):
        return iter(())

    def __or__(self, other):  # in annotations
        return self


_INERT = _Inert()


def _import(name, *args, **kwargs):
    """Import for a fix file; `sys.modules` and the program's finders stay as they are."""
    if name.split(".")[0] == "torchdoctor":
        return _INERT
    return builtins.__import__(name, *args, **kwargs)


def execute(file, name):
    """Return the module of a fix file, which no other code of the program can see."""
    spec = spec_from_file_location(name, file)
    module = module_from_spec(spec)
    module.__builtins__ = dict(vars(builtins), __import__=_import)
    exec(spec.loader.get_code(name), vars(module))
    dynamo_frames.skip_module(module, below=False)
    return module


def load_fix(session, entry, switched=False):
    """Load a fix of the plan by its path and apply it; return its `Program`."""
    program = Program(
        session.torch,
        entry["id"],
        session.plan,
        switched,
        optimizers=lambda: session.optimizers.alive(),
        loaders=lambda: session.loaders,
    )

    def apply():
        fix = execute(entry["file"], "_torchdoctor_fix_" + entry["id"].replace("-", "_"))
        fix.apply(session.torch, entry.get("settings") or {}, program)

    program.guarded(apply)
    return program
