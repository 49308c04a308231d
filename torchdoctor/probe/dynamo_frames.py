"""Keeps torch.compile away from the probe's own frames.

While a compiled function runs what is in none of its graphs, dynamo looks at each Python frame that
begins, also at those of hooks: it would compile them, call them the program's recompilations, and
give them up on the program's stderr. A frame's code can be marked before dynamo is imported.
"""

import contextlib
import functools
import sys
import types

_ROOT = __package__.partition(".")[0]
_COMPILED_FILE = "<torchdoctor: the compiled model>"
_ALONE = ("_torchdoctor_redirect", "_torchdoctor_scratch_layer")  # loaded before torch

_eval_frame = None  # torch's module of that name, in C, once a torch has been imported


def keep_out(torch, importing):
    """Mark all that is loaded of the probe; before anything is wrapped, which is marked anew.

    `importing`: what calls back when modules are imported, and stands in the way of each import.
    """
    global _eval_frame
    _eval_frame = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _ROOT:
            skip_module(module)
        elif name in _ALONE:
            skip_module(module, below=False)
    for code in _codes_of(type(importing)):
        _mark(code, below=False)


def skip_module(module, below=True):
    """Let no code of a module's own be compiled; `below`: nor what it calls."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) == module.__name__:
            for code in _codes_of(value):
                _mark(code, below)


def pass_through(function):
    """Let a wrapper not be compiled, but what it calls: the program's function is that.

    `torch.compiler.disable` would break the graph of a compiled caller.
    """
    code = getattr(function, "__code__", None)
    if code is not None:
        _mark(code, below=False)
    return function


def compiled_for_the_program(function):
    """Return a function of ours as one that dynamo compiles, and counts with the program's.

    A mark cannot be taken back in each torch, and does not follow to a copy of the code.
    """
    code = function.__code__.replace(co_filename=_COMPILED_FILE)
    return types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


def quietly(function):
    """Let nothing be looked at that a hook calls of Python and torch: torch 2.6 marks one frame."""

    @functools.wraps(function)
    def quiet(*args, **kwargs):
        if not hasattr(_eval_frame, "skip_code"):
            return function(*args, **kwargs)
        before = _eval_frame.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            _eval_frame.set_eval_frame(before)

    return quiet


def _mark(code, below):
    # A torch with neither: what it compiles at our frames costs time, and changes nothing.
    with contextlib.suppress(AttributeError, TypeError):
        if hasattr(_eval_frame, "skip_code"):  # up to torch 2.6
            _eval_frame.skip_code(code)
            return
        action = _eval_frame._FrameAction
        under = action.SKIP if below else action.DEFAULT
        strategy = _eval_frame._FrameExecStrategy(action.SKIP, under)
        _eval_frame.set_code_exec_strategy(code, strategy)


def _codes_of(value):
    """Yield the code of a function, of all that a class defines, and of what is nested in these."""
    if isinstance(value, type):
        for held in list(vars(value).values()):
            yield from _codes_of(held)
        return
    for part in ("fget", "fset", "__func__", "__wrapped__"):
        if isinstance(held := getattr(value, part, None), types.FunctionType):
            yield from _nested(held.__code__)
    if isinstance(value, types.FunctionType):
        yield from _nested(value.__code__)


def _nested(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)
