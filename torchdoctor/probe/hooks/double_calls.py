"""Lines of the user's code that ask for float64, until the first backward pass has ended.

What they wrap is put back then, so that neither a timed step nor the profiler's ever enters it.
"""

from functools import partial

from .. import places
from ..wrapping import NotedCalls

_MOST_ROWS = 16


class DoubleCalls:
    """Rows by (kind, name, line): whether all that this call gave there was float64."""

    def __init__(self, session):
        torch = self._torch = session.torch
        self._rows = {}
        self._calls = NotedCalls(session, "double_calls")
        self.stop = self._calls.put_back
        for owner, kind, names in (
            (torch.nn.Module, "model", ("double", "to", "type")),
            (torch.Tensor, "data", ("double", "to", "type")),
            (torch, "default", ("set_default_dtype", "set_default_tensor_type")),
            (torch, "data", ("from_numpy", "as_tensor", "tensor")),
        ):
            is_double = self._is_made if (owner, kind) == (torch, "data") else self._is_asked_for
            for name in names:
                self._calls.add(owner, name, partial(self._note, kind, is_double))
        self._calls.on = True

    def _is_asked_for(self, call):
        values = (*call.args, *call.kwargs.values())
        by_name = call.name == "set_default_tensor_type"
        if by_name or (call.name == "type" and len(values) > 1):
            return "DoubleTensor" in str(values[-1]) or values[-1] is self._torch.float64
        return call.name == "double" or any(value is self._torch.float64 for value in values)

    def _is_made(self, call):
        """Return True if it is float64 for another reason than that this is the default."""
        torch = self._torch
        if call.result is None or call.result.dtype is not torch.float64:
            return False
        data = call.args[0] if call.args else call.kwargs.get("data")
        follows = torch.get_default_dtype() is torch.float64 and "dtype" not in call.kwargs
        return not follows or call.name == "from_numpy" or hasattr(data, "__array_interface__")

    def _note(self, kind, is_double, call):
        caller, double = call.caller, is_double(call)
        direct = places.is_users(caller.f_code.co_filename)
        if not direct and (kind == "data" or not double):
            return
        where = places.of_frame(caller) if direct else places.here()
        if where is None:
            return
        key = kind, call.name, where["file"], where["line"]
        row = self._rows.setdefault(key, {"location": where, "double": False, "all": direct})
        row["double"] |= double
        row["all"] &= double

    def facts(self):
        """Return `double_calls` of the process facts."""
        rows = [
            {"kind": key[0], "name": key[1], "location": row["location"], "sure": row["all"]}
            for key, row in list(self._rows.items())
            if row["double"]
        ]
        return {"double_calls": rows[:_MOST_ROWS]}


def install(session):
    """Note calls in the observing launch alone, where no fix looks at who calls it."""
    if session.plan.get("purpose") != "observe" or session.plan.get("fixes"):
        return
    calls = DoubleCalls(session)
    session.registries.append(calls)
    session.when_learning.append(calls.stop)
