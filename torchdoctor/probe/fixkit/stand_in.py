"""A function of ours in place of one of torch's own, where torch knows its own by identity."""

from importlib import import_module


def stand_in(torch, old, new):
    """Let torch take `new` for what `old` is to it; called before the one replaces the other."""
    try:
        # Default devices are given to the functions in this set, which is made once, when it is
        # first asked for: made later it would hold `new`, and what `new` calls would get none.
        import_module("torch.utils._device")._device_constructors()
    except Exception:
        pass  # a torch without it
    try:
        builtins = torch.jit._builtins  # what torch.jit.script compiles into an operator
        operator = builtins._find_builtin(old)
        if operator is not None:
            builtins._register_builtin(new, operator)
    except Exception:
        pass  # a torch without this table: such a program says so itself
