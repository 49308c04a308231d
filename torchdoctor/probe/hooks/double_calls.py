"""Lines of the user's code that ask for float64, until the first backward pass has ended.

What they wrap is put back then, so that neither a timed step nor the profiler's ever enters it.
"""

import functools
import sys

from .. import places
from ..fixkit import stand_in

_MOST_ROWS = 16
_MAKERS = ("from_numpy", "as_tensor", "tensor")


class DoubleCalls:
    """Rows by (kind, name, line): whether all that this call gave there was float64."""

    def __init__(self, session):
        self._session = session
        self._torch = session.torch
        self._rows = {}
        self._wrapped = []  # (owner, name, what was there, what is there now)
        self._inside = False
        self._on = True

    def start(self):
        """Wrap what makes a model, the default or a tensor float64."""
        torch = self._torch
        for name in ("double", "to", "type"):
            self._wrap(torch.nn.Module, name, "model", self._is_asked_for)
            self._wrap(torch.Tensor, name, "data", self._is_asked_for)
        for name in ("set_default_dtype", "set_default_tensor_type"):
            self._wrap(torch, name, "default", self._is_asked_for)
        for name in _MAKERS:
            self._wrap(torch, name, "data", self._is_made)

    def stop(self):
        """Note nothing more, and put back what nobody else has wrapped since."""
        self._on = False
        for owner, name, old, new in self._wrapped:
            if getattr(owner, name, None) is new:
                setattr(owner, name, old)
        self._wrapped = []

    def _wrap(self, owner, name, kind, is_double):
        old = getattr(owner, name, None)
        if old is None:
            return
        session = self._session
        compiling = self._torch.compiler.is_dynamo_compiling

        @functools.wraps(old)
        def function(*args, **kwargs):
            # Where dynamo traces through here, the question is a constant.
            if compiling() or not self._on or self._inside:
                return old(*args, **kwargs)
            self._inside = True
            try:
                result = old(*args, **kwargs)
            except BaseException as error:
                session.hide_frames(error)
                raise
            finally:
                self._inside = False
            try:
                self._note(kind, name, sys._getframe(1), is_double(name, args, kwargs, result))
            except Exception as error:
                session.fail("double_calls", error)
            return result

        stand_in.stand_in(self._torch, old, function)
        setattr(owner, name, function)
        self._wrapped.append((owner, name, old, function))

    def _is_asked_for(self, name, args, kwargs, result):
        values = (*args, *kwargs.values())
        if name == "set_default_tensor_type" or (name == "type" and len(values) > 1):
            return "DoubleTensor" in str(values[-1]) or values[-1] is self._torch.float64
        return name == "double" or any(value is self._torch.float64 for value in values)

    def _is_made(self, name, args, kwargs, result):
        """Whether it is float64 for another reason than that this is the default."""
        torch = self._torch
        if result.dtype is not torch.float64:
            return False
        data = args[0] if args else kwargs.get("data")
        follows = torch.get_default_dtype() is torch.float64 and "dtype" not in kwargs
        return not follows or name == "from_numpy" or hasattr(data, "__array_interface__")

    def _note(self, kind, name, caller, double):
        direct = places.is_users(caller.f_code.co_filename)
        if not direct and (kind == "data" or not double):
            return
        where = places.of_frame(caller) if direct else places.here()
        if where is None:
            return
        key = kind, name, where["file"], where["line"]
        row = self._rows.setdefault(key, {"location": where, "double": False, "all": direct})
        row["double"] |= double
        row["all"] &= double

    def facts(self):
        """`double_calls` of the process facts."""
        found = [
            {"kind": key[0], "name": key[1], "location": row["location"], "sure": row["all"]}
            for key, row in list(self._rows.items())
            if row["double"]
        ]
        return {"double_calls": found[:_MOST_ROWS]}


def install(session):
    """In the observing launch alone, where no fix looks at who calls it."""
    if session.plan.get("purpose") != "observe" or session.plan.get("fixes"):
        return
    calls = DoubleCalls(session)
    calls.start()
    session.registries.append(calls)
    session.when_learning.append(calls.stop)
