"""Optimizer steps, and how each optimizer was made."""

import weakref
from functools import partial
from threading import get_ident

from .. import places, step_log, wrapping

_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


class Optimizers:
    """Every `torch.optim.Optimizer` of the process, numbered by construction."""

    def __init__(self, session):
        self._session = session
        self._idents = weakref.WeakKeyDictionary()
        self._quick = {}  # id(optimizer) -> number; the weak keys decide, these are for speed
        self._known = []  # _Known
        self.open = []
        self.noted = True  # whether steps still are
        self.briefly = False  # they are needed at first alone

    def made(self, optimizer, location):
        """Note a new optimizer."""
        if optimizer not in self._idents:
            self._idents[optimizer] = len(self._known)
            self._known.append(_Known(optimizer, location))

    def ident(self, optimizer):
        """Return its number."""
        number = self._quick.get(id(optimizer))
        # An id is used again when its owner has gone.
        if number is None or self._known[number].optimizer() is not optimizer:
            self.made(optimizer, None)
            number = self._quick[id(optimizer)] = self._idents[optimizer]
        return number

    def alive(self):
        """Return the optimizers that still exist."""
        return [alive for record in self._known if (alive := record.optimizer()) is not None]

    def begin(self, optimizer):
        """Note that step() begins; return its number."""
        ident = self.ident(optimizer)
        self._known[ident].steps += 1
        self.open.append(ident)
        return ident

    def end(self, optimizer):
        """Note that step() ends; return its number."""
        return self.open.pop() if self.open else self.ident(optimizer)

    def backward_ended(self, enough):
        """Note it: inside step(closure) it is that optimizer's. `enough`: steps tell no more."""
        if self.open:
            self._known[self.open[-1]].inside_backwards += 1
        if enough and self.briefly:
            self.noted = self.briefly = False

    def facts(self):
        """Return `optimizers` of the process facts."""
        return {"optimizers": [record.facts(ident) for ident, record in enumerate(self._known)]}


class _Known:
    """The facts of one optimizer."""

    def __init__(self, optimizer, location):
        self.optimizer = weakref.ref(optimizer)
        self._location = location
        self._described = {}
        self._first_lr = _rate(optimizer)
        self.steps = self.inside_backwards = 0

    def facts(self, ident):
        optimizer = self.optimizer()
        # An optimizer that is gone keeps what was known of it when it last was there.
        if optimizer is not None:
            self._described = _describe(optimizer)
        return {
            **self._described,
            "ident": ident,
            "location": self._location,
            "first_lr": self._first_lr,
            "steps": self.steps,
            "inside_backwards": self.inside_backwards,
        }


def _rate(optimizer):
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    return None if rate is None else float(rate)


def _describe(optimizer):
    cls = type(optimizer)
    groups = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"]]
    group = groups[0] if groups else {}
    names = {base.__name__ for base in cls.__mro__ if base.__module__.startswith("torch.optim")}
    return {
        "cls": "%s.%s" % (cls.__module__, cls.__qualname__),
        "parameters": len(parameters),
        "elements": sum(p.numel() for p in parameters),
        "device": str(parameters[0].device) if parameters else "cpu",
        "dtype": str(parameters[0].dtype).replace("torch.", "") if parameters else "float32",
        "fused": group.get("fused"),
        "foreach": group.get("foreach"),
        "supports_fused": bool(names & set(_FUSED)),
        "lr": _rate(optimizer),
        "distinct_lrs": len({float(each["lr"]) for each in groups if "lr" in each}) or 1,
        "weight_decay": float(group.get("weight_decay") or 0.0),
    }


def install(session):
    """Wrap steps and construction; the arguments of that where a fix wants it."""
    optimizers = session.optimizers
    base = session.torch.optim.Optimizer

    @session.guarded
    def made(optimizer):
        optimizers.made(optimizer, places.made_here(optimizer))
        session.models.look_early()

    def make(old):
        def __init__(self, *args, **kwargs):
            old(self, *args, **kwargs)
            made(self)

        return __init__

    wrapping.wrap(base, "__init__", make)
    steps = _Steps(session)
    wrapping.around_steps(
        session.torch, session.guarded(steps.begins), session.guarded(steps.ended), steps.failed
    )
    if any("optimizer" in program.functions for program in session.programs):
        for cls in _subclasses(base):
            if "__init__" in cls.__dict__:
                _change_arguments(session, cls)


class _Steps:
    """The notes of `Optimizer.step`, which begins, and ends or fails."""

    def __init__(self, session):
        self._session = session
        self._graphs = session.graphs
        self._bounds = session.window.bounds("optimizer")
        self._watched = session.phases or bool(session.programs)
        session.optimizers.briefly = not (self._watched or self._bounds)

    def begins(self, optimizer):
        session = self._session
        self._graphs.within += 1
        if not self._watched or not session.on:
            return
        if session.models.open_contexts or session.programs:
            session.models.leave_contexts()
            session.tell("step")
        if not self._captured():
            self._note_begin(optimizer)

    def ended(self, optimizer):
        self._graphs.within -= 1
        if self._session.on and self._captured():
            self._graphs.add(lambda: None, self._replayed, optimizer)
        else:
            self._note_end(optimizer)

    def failed(self, _):
        self._graphs.within -= 1
        if self._session.optimizers.open:
            self._session.optimizers.open.pop()

    def _captured(self):
        """Return whether a graph is captured now: the step is computed at each of its replays."""
        return self._graphs.notes is not None and self._graphs.capturing()

    def _replayed(self, optimizer):
        if optimizer is None:
            return
        if self._watched:
            self._note_begin(optimizer)
        self._note_end(optimizer)

    def _note_begin(self, optimizer):
        session = self._session
        ident = session.optimizers.begin(optimizer)
        if session.phases:
            session.log.add(step_log.OPTIMIZER_BEGIN, ident, get_ident())

    def _note_end(self, optimizer):
        session = self._session
        if not session.optimizers.noted or not session.on:
            return
        ident = session.optimizers.end(optimizer)
        session.learning(session.log.add(step_log.OPTIMIZER_END, ident))
        if self._bounds:
            session.window.event("optimizer", ident)


def _subclasses(base):
    direct = base.__subclasses__()
    return direct + [below for cls in direct for below in _subclasses(cls)]


def _change_arguments(session, cls):
    def make(old):
        changed = wrapping.with_arguments(old, partial(session.tell, "optimizer", cls))

        def __init__(self, *args, **kwargs):
            # A subclass's own __init__ has already been changed when it calls its parent's.
            (changed if type(self) is cls else old)(self, *args, **kwargs)

        return __init__

    wrapping.wrap(cls, "__init__", make)
