"""Functions of torch and of libraries with the probe's own around them."""

import contextlib
import functools
import inspect
import sys
from collections import namedtuple
from importlib import import_module
from time import perf_counter_ns

from . import dynamo_frames, places

# `lone`: nobody but the call itself holds its first argument.
Call = namedtuple("Call", ("name", "caller", "args", "kwargs", "result", "took_ns", "lone"))


def wrap(owner, name, make):
    """Set owner.name, if there is one, to make(old), which keeps old's name; return old or None."""
    if (old := getattr(owner, name, None)) is not None:
        new = functools.wraps(old)(dynamo_frames.pass_through(make(old)))
        if inspect.ismodule(owner):
            new.__module__ = owner.__name__  # where pickle looks for it
        setattr(owner, name, new)
    return old


def guarded(session, function):
    """Wrap a hook body of ours so that it can never raise into the program."""

    @functools.wraps(function)
    def hook(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception as error:
            session.fail(getattr(function, "__name__", "hook"), error)
            return None

    return hook


def hide_frames(session, error):
    """Take our frame out of an exception; its wrapper goes on with a bare `raise`.

    Before Python 3.11 that raises what was caught, and the frame is seen.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def before(session, owner, name, look):
    """Call look(*args, **kwargs) before owner.name; its failure never reaches the program."""

    look, compiling = guarded(session, look), session.torch.compiler.is_dynamo_compiling

    def make(old):
        def function(*args, **kwargs):
            # Where dynamo traces through here, the question is a constant.
            if not compiling() and session.on:
                look(*args, **kwargs)
            try:
                return old(*args, **kwargs)
            except BaseException as error:
                session.hide_frames(error)
                raise

        return function

    wrap(owner, name, make)


def with_arguments(old, change):
    """Return a function that calls old with arguments that change(arguments: dict) has changed."""
    signature = inspect.signature(old)

    def function(*args, **kwargs):
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return old(*args, **kwargs)  # the user's own mistake, with Python's own words
        bound.apply_defaults()
        change(bound.arguments)
        return old(*bound.args, **bound.kwargs)

    return dynamo_frames.pass_through(function)


def around_steps(torch, begins, ended, failed=None):
    """Call begins(optimizer) and ended(optimizer) around each step of each optimizer.

    Around torch's own hooks: where a step is compiled these are traced, and ours would break its
    graph. None may raise; failed(optimizer) is called in place of `ended` where the step raises.
    """
    base = torch.optim.Optimizer
    compiling = torch.compiler.is_dynamo_compiling
    old = base.profile_hook_step  # called once for each class, when the first of it is made

    @functools.wraps(old)
    def profile_hook_step(function):
        hooked = old(function)

        @functools.wraps(hooked)
        def step(*args, **kwargs):
            if compiling():
                return hooked(*args, **kwargs)
            begins(args[0])
            try:
                result = hooked(*args, **kwargs)
            except BaseException as error:
                hide_frames(None, error)
                if failed is not None:
                    failed(args[0])
                raise
            ended(args[0])
            return result

        dynamo_frames.pass_through(step)
        return step

    base.profile_hook_step = staticmethod(profile_hook_step)


def stand_in(torch, old, new):
    """Let torch take `new` for what `old` is to it; called before the one replaces the other."""
    with contextlib.suppress(Exception):  # a torch without these: such a program says so itself
        # Default devices are given to the functions in this set, which is made once, when it is
        # first asked for: made later it would hold `new`, and what `new` calls would get none.
        import_module("torch.utils._device")._device_constructors()
        builtins = torch.jit._builtins  # what torch.jit.script compiles into an operator
        if (operator := builtins._find_builtin(old)) is not None:
            builtins._register_builtin(new, operator)


class NotedCalls:
    """Functions of torch whose calls, but for nested ones, are noted while `on`, as a `part`."""

    def __init__(self, session, part):
        self._session = session
        self._part = part
        self._wrapped = []  # (owner, name, what was there, what is there now)
        self.on = False
        self.inside = False

    def add(self, owner, name, note):
        """Call note(Call) after each call of owner.name, if there is one; failed: result None."""
        session = self._session
        compiling = session.torch.compiler.is_dynamo_compiling
        temporary = temporary_count()

        def make(old):
            def function(*args, **kwargs):
                # Where dynamo traces through here, the question is a constant.
                if compiling() or not self.on or self.inside:
                    return old(*args, **kwargs)
                caller = sys._getframe(1)
                if places.is_probes(caller.f_code.co_filename):
                    return old(*args, **kwargs)  # what the probe itself calls is not the program's
                lone = bool(args) and sys.getrefcount(args[0]) <= temporary
                result = None
                self.inside = True
                began = perf_counter_ns()
                try:
                    result = old(*args, **kwargs)
                    return result
                except BaseException as error:
                    session.hide_frames(error)
                    raise
                finally:
                    took_ns = perf_counter_ns() - began
                    self.inside = False
                    try:
                        note(Call(name, caller, args, kwargs, result, took_ns, lone))
                    except Exception as error:
                        session.fail(self._part, error)

            stand_in(session.torch, old, function)
            return function

        if (old := wrap(owner, name, make)) is not None:
            self._wrapped.append((owner, name, old, getattr(owner, name)))

    def put_back(self):
        """Note nothing more, and put back what nobody else has wrapped since."""
        self.on = False
        for owner, name, old, new in self._wrapped:
            if getattr(owner, name, None) is new:
                setattr(owner, name, old)
        self._wrapped = []


def temporary_count():
    """Return the reference count, in a wrapper's `args`, of an object that nobody else holds."""
    if sys.version_info >= (3, 14):
        return 0  # a caller's own reference may be borrowed there: nothing can be told

    def held(*args, **kwargs):
        return sys.getrefcount(args[0])

    return held(bytearray())
