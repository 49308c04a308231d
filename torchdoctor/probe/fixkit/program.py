"""The program as `apply(torch, settings, program)` of a fix is handed it."""

import functools
import sys

from ..wrapping import stand_in
from . import answered_calls, second_loader, training_state
from .probe_access import ProbeAccess


class Refusal(Exception):
    """The fix does not apply to this program; the message says why."""


class _GivenUp(Exception):
    """It cannot be switched on in the middle; from its start the program may be run with it."""


class Program(ProbeAccess):
    """The places where a fix hooks into the program. One instance for each fix of the plan.

    Args:
        torch: the user's torch module.
        fix: the fix's id.
        plan: the launch's plan.
        switched: it is switched on and off while the program runs; off at first.
        optimizers: a function that lists the program's optimizers.
        loaders: a function that gives `loader_hooks.Loaders`.
    """

    def __init__(
        self, torch, fix, plan=None, switched=False, optimizers=list, loaders=lambda: None
    ):
        plan = self.plan = plan or {}
        self.torch = torch
        self.fix = fix
        self.folder = plan.get("channel")  # of this launch: what lies in `staged` there is removed
        self.files_read = plan.get("files_read")  # the files that the observed loop read
        self.switched = switched
        self.on = not switched
        self.optimizers, self.loaders = optimizers, loaders
        self.state = "pending"
        self.reason = None
        self.details = {}
        self.functions = {}  # by event: what the hooks call while it is on
        self.second_loader = None
        self.given_back = []  # (loader, batch): its next ones, before it is asked again
        self.modules = []  # the program's root modules, from the moment it is switched on

    def _at(self, event, function):
        self.functions.setdefault(event, []).append(function)

    def refuse(self, reason):
        """Raise `Refusal`: the fix does not apply, with the reason that the user reads."""
        raise Refusal(reason)

    def give_up(self, reason):
        """Raise what leaves a fix that is switched in a running program to launches of its own."""
        raise _GivenUp(reason)

    def before_loader(self, function, only=None, with_second=False):
        """Let function(arguments: dict) change a DataLoader's arguments beforehand.

        `only`: the ident of the loader that is meant; None: every one. `with_second`: in a running
        program, batches of the training loader come from a second one that is made with the changed
        arguments, while it is on.
        """

        def change(arguments, ident):
            if only is None or ident == only:
                function(arguments)

        self.set_reason(self.reason or "No DataLoader that it could change was made.")
        if self.switched and with_second:
            second_loader.add(self, change)
            return
        self._only_from_the_start()
        self._at("loader", change)

    def before_optimizer(self, function):
        """Let function(cls, arguments: dict) change an optimizer's arguments before it is made."""
        self._only_from_the_start()
        self._at("optimizer", function)

    def on_model(self, function, undo=None):
        """Call function(module) once for each root module, at the first training batch.

        `undo(module)`: leaves it as it was; also where function has failed half-way.
        """
        if undo is None:
            self._only_from_the_start()
        self._at("model", function)
        self._at("undo model", undo)

    def before_forward(self, function):
        """Let function(module, args, kwargs) -> (args, kwargs) change outermost root calls."""
        self._at("arguments", function)

    def around_forward(self, make_context, until="forward"):
        """Enter make_context(module) -> context manager or None before the root's forward.

        It is left at the end of the forward; with until="backward" when a backward begins, the
        next batch is fetched or an optimizer steps.
        """
        self._at("contexts until " + until, make_context)

    def around_fetch(self, answer, keep):
        """Take answer(ident, left) -> (batch,) in place of a loader's next one; None: fetch it.

        `left`: batches until the epoch ends; None: nobody can say. () ends it here: the program
        does what it does between epochs, and the next one goes on where its iterator stands.
        keep(ident, batch) sees each batch that was fetched.
        """
        self._at("fetch", answer)
        self._at("fetched", keep)

    def give_back(self, ident, batch):
        """Keep a batch that was not trained with: the loader's next one when the fix is off."""
        self.given_back.append((ident, batch))

    def around_model(self, answer, keep):
        """Take answer(module, args, kwargs) -> (output,) in place of a root's forward, or None.

        keep(module, args, kwargs, output) sees each forward that was run.
        """
        self._at("forward", answer)
        self._at("forward ended", keep)

    def in_place_of_backward(self, function):
        """Call function(tensors) before each backward, which is not run where it says True."""
        self._at("instead of backward", function)

    def in_place_of_gradients(self, function):
        """Take function(args, kwargs) -> (result,) in place of a `torch.autograd.grad`, or None."""
        self._at("gradients", function)

    def each_iteration(self, function):
        """Call function() at each iteration of a switching launch, from the second one on."""
        self._at("iteration", function)

    def settles(self, function):
        """Ask function() whether a block may begin, for all that it left running."""
        self._at("settled", function)

    def at_end(self, function):
        """Call function() once it is switched on no more; it must do no harm a second time."""
        self._at("end", function)

    def restore_training(self):
        """Put the training's state back to what it was before, when the fix is switched off."""
        kept = []

        def keep():
            if not kept:
                lacking = training_state.lacking(self.torch, self.modules, self.optimizers())
                if lacking is not None:
                    self.give_up(lacking)
                state = training_state.TrainingState(self.torch, self.modules, self.optimizers())
                kept.append(state)

        def put_back():
            if kept:
                kept.pop().put_back()

        self.at_first_batch(keep, put_back)

    def answered_calls(self):
        """Return an `AnsweredCalls` that is on while this is."""
        calls = answered_calls.AnsweredCalls(self)
        self.at_first_batch(calls.start, calls.stop)
        self.each_iteration(calls.next_iteration)
        return calls

    def before_backward(self, function):
        """Call function() before each backward."""
        self._at("backward", function)

    def before_step(self, function):
        """Call function() before each optimizer step."""
        self._at("step", function)

    def around_step(self, before, after=None):
        """Call before(optimizer) and after(optimizer) around each step of each optimizer."""
        self._only_from_the_start()
        hooks = sys.modules[self.torch.optim.Optimizer.__module__]

        def hook(function):
            def call(optimizer, args, kwargs):
                if self.usable:
                    self.guarded(function, optimizer)

            return call

        hooks.register_optimizer_step_pre_hook(hook(before))
        if after is not None:
            hooks.register_optimizer_step_post_hook(hook(after))

    def at_first_batch(self, function, undo=None):
        """Call function() once, after the user's set-up: to overrule switches that the script set.

        `undo()`: leaves all as it was; also where function has failed half-way.
        """
        if undo is None:
            self._only_from_the_start()
        self._at("first batch", function)
        self._at("undo first batch", undo)

    def replace(self, owner, name, make):
        """Set owner.name to make(old), which keeps old's name, documentation and signature."""
        old = getattr(owner, name)
        new = ours = make(old)
        if self.switched:

            def new(*args, **kwargs):
                return (ours if self.on else old)(*args, **kwargs)

        try:
            new = functools.wraps(old)(new)
        except (AttributeError, TypeError):
            pass
        stand_in(self.torch, old, new)
        setattr(owner, name, new)

    def _only_from_the_start(self):
        # "failed", not "refused": from its start the program may well be run with it.
        if self.switched:
            raise RuntimeError("it cannot be switched off again in a running program")

    @property
    def usable(self):
        """Return whether it was neither refused nor failed."""
        return self.state in ("pending", "applied")

    def switch_on(self, modules):
        """Take effect from here on; `usable` says whether it did.

        Args:
            modules: the program's root modules.
        """
        self.on, self.modules = True, modules
        self.call("first batch")
        for module in modules:
            self.call("model", module)

    def switch_off(self, modules):
        """Leave everything as it was before `switch_on`.

        Raises:
            Exception: whatever an undo raised; the program's state is then not known.
        """
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
            self.state, self.reason = "applied", None  # the reason was why it was pending

    def set_reason(self, text):
        """Set why the fix is in the state that it is in."""
        self.reason = text

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
            self.state, self.reason = "refused", str(refusal)
        except _GivenUp as reason:
            self.state, self.reason = "failed", str(reason)
        except Exception as error:
            self.state = "failed"
            self.reason = "%s: %s" % (type(error).__name__, error)
        return None

    def facts(self):
        """Return the fix's state as `words.AppliedFix`."""
        return {name: getattr(self, name) for name in ("fix", "state", "reason", "details")}
