"""Optimizer steps, by torch's own global step hooks, and how each optimizer was made."""

import functools
import inspect
import sys
import weakref

from .. import places, step_log

_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


class Optimizers:
    """Every `torch.optim.Optimizer` of the process, numbered by construction."""

    def __init__(self, session):
        self._session = session
        self._idents = weakref.WeakKeyDictionary()
        self._quick = {}  # id(optimizer) -> number; the weak keys decide, these are for speed
        self._known = []  # [weakref, location, steps, backwards inside step, facts, lr]
        self.open = []
        self.handle = None  # of a hook that is not needed for ever

    def made(self, optimizer, location):
        """A new optimizer."""
        if optimizer not in self._idents:
            self._idents[optimizer] = len(self._known)
            rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
            first = float(rate) if rate is not None else None
            self._known.append([weakref.ref(optimizer), location, 0, 0, None, first])

    def ident(self, optimizer):
        """Its number."""
        number = self._quick.get(id(optimizer))
        # An id is used again when its owner has gone.
        if number is not None and self._known[number][0]() is optimizer:
            return number
        if optimizer not in self._idents:
            self.made(optimizer, None)
        number = self._quick[id(optimizer)] = self._idents[optimizer]
        return number

    def alive(self):
        """The optimizers that still exist."""
        return [optimizer for row in self._known if (optimizer := row[0]()) is not None]

    def begin(self, optimizer):
        """step() begins."""
        ident = self.ident(optimizer)
        self._known[ident][2] += 1
        self.open.append(ident)
        return ident

    def end(self, optimizer):
        """step() ends."""
        return self.open.pop() if self.open else self.ident(optimizer)

    def saw_backward(self):
        """A backward ended; inside step(closure) it belongs to that optimizer."""
        if self.open:
            self._known[self.open[-1]][3] += 1

    def leave(self):
        """Steps are not looked at any more."""
        self.handle.remove()
        self.handle = None

    def facts(self):
        """`optimizers` of the process facts."""
        return {"optimizers": [self._facts_of(i, row) for i, row in enumerate(self._known)]}

    def _facts_of(self, ident, row):
        optimizer = row[0]()
        # An optimizer that is gone keeps what was known of it when it last was there.
        if optimizer is not None:
            row[4] = _describe(optimizer)
        return {
            **(row[4] or {}),
            "ident": ident,
            "location": row[1],
            "first_lr": row[5],
            "steps": row[2],
            "inside_backwards": row[3],
        }


def _describe(optimizer):
    cls = type(optimizer)
    groups = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"]]
    first = parameters[0] if parameters else None
    group = groups[0] if groups else {}
    rate = group.get("lr")
    names = {base.__name__ for base in cls.__mro__ if base.__module__.startswith("torch.optim")}
    return {
        "cls": "%s.%s" % (cls.__module__, cls.__qualname__),
        "parameters": len(parameters),
        "elements": sum(p.numel() for p in parameters),
        "device": str(first.device) if first is not None else "cpu",
        "dtype": str(first.dtype).replace("torch.", "") if first is not None else "float32",
        "fused": group.get("fused"),
        "foreach": group.get("foreach"),
        "supports_fused": bool(names & set(_FUSED)),
        "lr": float(rate) if rate is not None else None,
        "distinct_lrs": len({float(one["lr"]) for one in groups if "lr" in one}) or 1,
        "weight_decay": float(group.get("weight_decay") or 0.0),
    }


def install(session):
    """Register the global step hooks; wrap construction where a fix wants it."""
    torch = session.torch
    optimizers = session.optimizers = Optimizers(session)
    session.registries.append(optimizers)
    base = torch.optim.Optimizer
    old_init = base.__init__

    @functools.wraps(old_init)
    def __init__(self, *args, **kwargs):
        old_init(self, *args, **kwargs)
        try:
            optimizers.made(self, places.made_here(self))
        except Exception as error:
            session.fail("optimizer", error)

    base.__init__ = __init__

    def first():
        session.models.leave_contexts()
        for program in session.programs:
            for function in program.step_functions:
                program.guarded(function)

    window, add, models = session.window, session.log.add, session.models
    bounds, phases = window.kind == "optimizer", session.phases

    def begin(optimizer, args, kwargs):
        if not session.on:
            return
        try:
            if models.open_contexts or session.programs:
                first()
            ident = optimizers.begin(optimizer)
            if phases:
                add(step_log.OPTIMIZER_BEGIN, ident)
        except Exception as error:
            session.fail("optimizer", error)

    def end(optimizer, args, kwargs):
        if not session.on:
            return
        try:
            ident = optimizers.end(optimizer)
            session.learning(add(step_log.OPTIMIZER_END, ident))
            if bounds:
                window.event("optimizer", ident)
        except Exception as error:
            session.fail("optimizer", error)

    hooks = sys.modules[base.__module__]
    if session.phases or session.programs:
        hooks.register_optimizer_step_pre_hook(begin)
    handle = hooks.register_optimizer_step_post_hook(end)
    if not (session.phases or session.programs or bounds):
        optimizers.handle = handle
    if any(program.optimizer_functions for program in session.programs):
        for cls in _subclasses(base):
            _change_arguments(session, cls)


def _subclasses(base):
    found = []
    for cls in base.__subclasses__():
        found.append(cls)
        found += _subclasses(cls)
    return found


def _change_arguments(session, cls):
    if "__init__" not in cls.__dict__:
        return
    old = cls.__init__
    signature = inspect.signature(old)

    @functools.wraps(old)
    def __init__(self, *args, **kwargs):
        # A subclass's own __init__ has already been changed when it calls its parent's.
        if type(self) is not cls:
            return old(self, *args, **kwargs)
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            return old(self, *args, **kwargs)  # the user's own mistake, with Python's own words
        bound.apply_defaults()
        for program in session.programs:
            for function in program.optimizer_functions:
                program.guarded(function, cls, bound.arguments)
        return old(*bound.args, **bound.kwargs)

    cls.__init__ = __init__
