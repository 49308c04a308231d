"""Lines of the user's code that ask for float64 or float16, until the first backward has ended.

What they wrap is put back then, so that neither a timed step nor the profiler's ever enters it.
"""

from functools import partial

from .. import places
from ..wrapping import NotedCalls

_MOST_ROWS = 16
# Field of the process facts -> method, and the name of the old tensor type.
_PRECISIONS = {"double_calls": ("double", "DoubleTensor"), "half_calls": ("half", "HalfTensor")}


class DoubleCalls:
    """Rows by (field, kind, name, line): whether all that this call gave there was of that type."""

    def __init__(self, session):
        torch = self._torch = session.torch
        self._rows = {}
        self._dtypes = {"double_calls": torch.float64, "half_calls": torch.float16}
        self._calls = NotedCalls(session, "double_calls")
        self.stop = self._calls.put_back
        for owner, kind, names in (
            (torch.nn.Module, "model", ("double", "half", "to", "type")),
            (torch.Tensor, "data", ("double", "half", "to", "type")),
            (torch, "default", ("set_default_dtype", "set_default_tensor_type")),
            (torch, "data", ("from_numpy", "as_tensor", "tensor")),
        ):
            is_of_type = self._is_made if (owner, kind) == (torch, "data") else self._is_asked_for
            for name in names:
                self._calls.add(owner, name, partial(self._note, kind, is_of_type))
        self._calls.on = True

    def _is_asked_for(self, call, field):
        (method, old_type), dtype = _PRECISIONS[field], self._dtypes[field]
        values = (*call.args, *call.kwargs.values())
        by_name = call.name == "set_default_tensor_type"
        if by_name or (call.name == "type" and len(values) > 1):
            return old_type in str(values[-1]) or values[-1] is dtype
        return call.name == method or any(value is dtype for value in values)

    def _is_made(self, call, field):
        """Return True if it is of the type for another reason than that this is the default."""
        torch = self._torch
        dtype = self._dtypes[field]
        if call.result is None or call.result.dtype is not dtype:
            return False
        data = call.args[0] if call.args else call.kwargs.get("data")
        follows = torch.get_default_dtype() is dtype and "dtype" not in call.kwargs
        return not follows or call.name == "from_numpy" or hasattr(data, "__array_interface__")

    def _note(self, kind, is_of_type, call):
        caller = call.caller
        direct = places.is_users(caller.f_code.co_filename)
        if not direct and kind == "data":
            return
        asked = {field: is_of_type(call, field) for field in _PRECISIONS}
        if not direct and not any(asked.values()):
            return
        where = places.of_frame(caller) if direct else places.here()
        if where is None:
            return
        for field, wanted in asked.items():
            if not direct and not wanted:
                continue
            key = field, kind, call.name, where["file"], where["line"]
            row = self._rows.setdefault(key, {"location": where, "wanted": False, "all": direct})
            row["wanted"] |= wanted
            row["all"] &= wanted

    def facts(self):
        """Return `double_calls` and `half_calls` of the process facts."""
        calls = {field: [] for field in _PRECISIONS}
        for (field, kind, name, *_), row in list(self._rows.items()):
            if row["wanted"]:
                call = {"kind": kind, "name": name, "location": row["location"]}
                calls[field].append({**call, "sure": row["all"]})
        return {field: rows[:_MOST_ROWS] for field, rows in calls.items()}


def install(session):
    """Note calls in the observing launch alone, where no fix looks at who calls it."""
    if session.plan.get("purpose") != "observe" or session.plan.get("fixes"):
        return
    calls = DoubleCalls(session)
    session.registries.append(calls)
    session.when_learning.append(calls.stop)
