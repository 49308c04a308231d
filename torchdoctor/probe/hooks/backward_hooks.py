"""Backward passes and the loss at each of them.

`Tensor.backward` goes through `torch.autograd.backward`, so one wrapper sees both.
"""

import os
import sys
from array import array
from itertools import islice
from threading import get_ident

from .. import dynamo_frames, places, step_log, wrapping
from ..measure.nested import holds_numbers
from . import gradient_hooks
from .scaled_losses import first_of

_SETTLED = 16  # backwards, and optimizer steps as long as they are looked at
_MOST_BACKWARDS = 24  # enough for a generator that learns at every fifth step
_MOST_FORWARDS = 2_000  # an episode of single forwards may come before each backward
_DEEPEST = 40  # frames of the user's code
_CUDA_GRAPHS = "torch._inductor.cudagraph_trees"  # imported once "reduce-overhead" makes one


class Losses:
    """The loss at every backward: read at once on the CPU, kept on the device elsewhere.

    Those on a device are read where it was waited for anyway; without a boundary none are kept.
    """

    def __init__(self, session):
        self._session = session
        self._keeps_on_device = session.window.kind is not None
        session.forget.append(self._forget)
        session.when_device_rests.append(self.read_device)
        session.when_flushing.append(self._write)
        self._forget()

    def _forget(self):
        self._values = array("d")
        self._device = []  # (index, detached tensor)
        self._written = 0

    def keep(self, tensors, replayed=False):
        """Keep a scalar loss; return its index, -1 for no scalar (+inf, so that indices agree).

        `replayed`: the next replay of a graph writes over it.
        """
        tensor = self._session.scaled_losses.unscaled(first_of(tensors))
        values = self._values
        try:
            if tensor.is_cpu and holds_numbers(tensor, self._session.torch):
                values.append(tensor.item())  # raises where it is no scalar
                return len(values) - 1
        except (AttributeError, RuntimeError, ValueError, TypeError):
            pass
        values.append(float("inf"))
        if getattr(tensor, "numel", None) is None or tensor.numel() != 1 or tensor.is_cpu:
            return -1
        if self._keeps_on_device:
            loss = tensor.detach()
            # As does that of a compiled one; elsewhere no kernel is ours.
            if replayed or _CUDA_GRAPHS in sys.modules:
                loss = loss.clone()
            self._device.append((len(values) - 1, loss))
        return len(values) - 1

    def read_device(self):
        """Read the losses that lie on the device, which waits for it."""
        kept, self._device = self._device, []
        for index, tensor in kept:
            try:
                self._values[index] = float(tensor.float().item())
            except RuntimeError as error:  # its loss alone is not known
                self._session.fail("loss", error)

    def _write(self):
        """Append to `losses-<number>.bin` what is known: the losses before the first unread one."""
        end = self._device[0][0] if self._device else len(self._values)
        new = self._values[self._written : end]
        if not new:
            return
        self._written = end
        path = os.path.join(self._session.channel, "losses-%d.bin" % self._session.number)
        with open(path, "ab") as file:
            new.tofile(file)


class BackwardPasses:
    """The work before and after each backward pass."""

    def __init__(self, session):
        self._session = session
        self._losses = session.losses = Losses(session)
        # False: not looked for yet
        session.backward_location = False if session.phases else None
        self._bounds = session.window.bounds("backward")
        self._open = 0  # passes; those within one, as of checkpointing, separate no steps

    @dynamo_frames.quietly
    def _first(self, retain_graph):
        """Do what is rare: contexts to leave, functions of fixes, the first batches."""
        session = self._session
        models = self._session.models
        models.leave_contexts()
        session.tell("backward")
        if not models.settled:
            models.discover()
        if session.backward_location is False and (models.seen_forward or models.settled):
            session.backward_location = places.here()
        if session.passes.on:
            session.passes.backward()
        session.first_batch()
        session.retain_graph += bool(retain_graph)

    def prepare(self, retain_graph):
        """Do what comes before a backward pass, also where that is captured into a graph."""
        session = self._session
        models = self._session.models
        if models.settled and (session.phases or session.programs):
            if not models.seen_forward:
                models.look_again()
            models.seen_forward = False
        rare = retain_graph or session.backward_location is False or not models.settled
        rare = rare or session.passes.on
        if rare or models.open_contexts or session.programs or not session.first_batch_done:
            self._first(retain_graph)

    def begin(self, retain_graph=False):
        """Note that a backward pass begins."""
        self.prepare(retain_graph)
        self.begin_replay()

    def begin_replay(self):
        """Note that one begins which was captured into a graph."""
        session = self._session
        if self._bounds and not self._open:
            session.window.event("backward", 0)
        self._open += 1
        if session.phases:
            session.log.add(step_log.BACKWARD_BEGIN, 0, get_ident())

    def end(self, tensors, replayed=False):
        """Note that it ended; `tensors`: what it began at, () where there is no loss."""
        session = self._session
        optimizers = self._session.optimizers
        self._open = max(self._open - 1, 0)
        index = self._losses.keep(tensors, replayed)
        if optimizers.open or optimizers.briefly:
            optimizers.backward_ended(session.learned >= _SETTLED)
        if session.sparse and session.learned >= _SETTLED:
            session.learned += 1
            return  # fetches separate iterations and watch the clock
        now = session.log.add(step_log.BACKWARD_END, 0, index)
        session.learning(now)

    def failed(self):
        """Note that one ended by an exception."""
        self._open = max(self._open - 1, 0)
        self._session.log.add(step_log.BACKWARD_END, 0, -1)

    def end_replay(self, loss):
        """Note that one ended which was captured into a graph; None: its loss is gone."""
        self.end(loss, replayed=True)

    def around(self, old):
        """Return the wrapper of `torch.autograd.backward`; our failures never reach the program."""
        session = self._session
        begin = self.begin
        end = self.end
        graphs = session.graphs
        watched = session.phases or self._bounds or session.programs
        compiling = session.torch.compiler.is_dynamo_compiling

        def backward(tensors, *args, **kwargs):
            if compiling() or not session.on:
                return old(tensors, *args, **kwargs)
            captured = graphs.notes is not None and graphs.capturing()
            try:
                if watched or not session.first_batch_done:
                    (self.prepare if captured else begin)(kwargs.get("retain_graph"))
            except Exception as error:
                session.fail("backward", error)
            graphs.within += 1
            try:
                if session.programs and session.ask("instead of backward", tensors):
                    result = None
                else:
                    result = old(tensors, *args, **kwargs)
            except BaseException as error:
                session.hide_frames(error)
                if not captured:
                    self.failed()
                raise
            finally:
                graphs.within -= 1
            try:
                if captured:
                    graphs.add(self.begin_replay, self.end_replay, first_of(tensors))
                else:
                    end(tensors)
            except Exception as error:
                session.fail("backward", error)
            return result

        return backward


def install(session):
    """Wrap `torch.autograd.backward`, and `torch.autograd.grad`."""
    passes = BackwardPasses(session)
    session.scaled_losses.install()
    wrapping.wrap(session.torch.autograd, "backward", passes.around)
    gradient_hooks.install(session, passes)


class Passes:
    """From a training forward to the backward that ends it: where both stand in the user's code.

    A step may hold several (GANs). Looked at for the first passes of the observing launch alone.
    """

    def __init__(self, session):
        self.on = session.phases and session.plan.get("purpose") == "observe"
        self._forwards = self._backwards = 0
        self._begun = None
        self._seen = []

    def forward(self, root, module):
        """Note a root's call in training mode, gradients on: the first since a backward counts."""
        if not self.on:
            return
        self._forwards += 1
        self.on = self._forwards < _MOST_FORWARDS
        frame = places.users_frame(sys._getframe(1))
        lines = _lines(frame)
        if self._begun is None or _loop_began_anew(self._begun["forward"], lines):
            name = places.name_of(frame, module) if frame is not None else None
            self._begun = {"model": root.ident, "name": name, "forward": lines}

    def backward(self):
        """Note that a backward pass begins."""
        begun, self._begun = self._begun, None
        self._backwards += 1
        self.on = self.on and self._backwards < _MOST_BACKWARDS
        if begun is not None:
            frame = sys._getframe(1)
            begun["library"] = _library(frame)
            begun["backward"] = _lines(places.users_frame(frame))
            if begun not in self._seen:
                self._seen.append(begun)

    def facts(self):
        """Return `passes` of the process facts."""
        return {"passes": self._seen}


def _lines(frame):
    """Return the lines of the user's code that led here, the innermost first."""
    return list(map(places.of_frame, islice(places.users_frames(frame), _DEEPEST)))


def _library(frame):
    """Return the module of the object that the user's code called, if it makes the backward."""
    called = None
    while frame is not None and not places.is_users(frame.f_code.co_filename):
        called = frame if places.is_librarys(frame.f_globals.get("__name__")) else called
        frame = frame.f_back
    if called is None:
        return None
    # A class may inherit the method from another library, and the user's class inherits it.
    modules = [cls.__module__ for cls in type(called.f_locals.get("self")).__mro__]
    return next(filter(places.is_librarys, modules), called.f_globals["__name__"])


def _loop_began_anew(before, now):
    """Return whether control went back up: what was called last before got no backward."""
    if not now or len(before) != len(now):
        return False
    last = before[0]
    first = now[0]
    same = (last["file"], last["function"]) == (first["file"], first["function"])
    return same and first["line"] < last["line"]
