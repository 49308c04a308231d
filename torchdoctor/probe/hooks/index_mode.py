"""Sees tensors being indexed, for a few steps that nothing is timed in.

By a mode of torch's own. A `__getitem__` set on the class itself would make every tensor, also one
without dimensions, a sequence to C code: `torch.tensor([loss])` would fail.
"""

import sys
from time import perf_counter_ns

_NAMES = ("__getitem__", "__setitem__")


def enter(torch, note):
    """Call `note(name, caller, args, result, took_ns)` after each index, in this thread.

    Returns:
        A function that ends it; None where that could not be done safely: the program has a mode
        of its own open, which may end before this one, or has compiled something, whose guards
        ask for the modes.
    """
    if _has_compiled() or torch.overrides._get_current_function_mode_stack():
        return None
    watched = {getattr(torch.Tensor, name): name for name in _NAMES}

    class IndexMode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            name = watched.get(func)
            if name is None:
                return func(*args, **(kwargs or {}))
            caller = sys._getframe(1)
            began = perf_counter_ns()
            result = func(*args, **(kwargs or {}))
            note(name, caller, args, result, perf_counter_ns() - began)
            return result

    mode = IndexMode()
    mode.__enter__()

    def leave():
        stack = torch.overrides._get_current_function_mode_stack()
        if stack and stack[-1] is mode:
            mode.__exit__(None, None, None)

    return leave


def _has_compiled():
    """Whether torch.compile has compiled anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    try:
        return dynamo is not None and bool(dynamo.counters["frames"])
    except Exception:
        return True
