"""What an option of the command line is read for besides the argument of an edit."""

from __future__ import annotations

import libcst as cst
from libcst import matchers

from torchdoctor.edits.origins import Names
from torchdoctor.edits.syntax import collect, last_name

# Of a loader: they go with its number of workers.
_BESIDE = (
    "persistent_workers",
    "prefetch_factor",
    "multiprocessing_context",
    "timeout",
    "pin_memory",
)
_SHOWS = ("print", "info", "debug", "write")


def serves_something_else(module: cst.Module, option: str, keyword: str) -> bool:
    """Whether `args.threads` seeds or sizes something too, which a new default would change.

    Not where it is shown, or is the same argument of another call, as of a second loader.

    Args:
        option: its name in the namespace: "threads".
        keyword: the argument that it is changed for: "num_workers".
    """
    names = Names(module)
    reads: list[cst.CSTNode] = [
        x
        for x in matchers.findall(module, matchers.Attribute(attr=matchers.Name(option)))
        if not matchers.matches(x, matchers.Attribute(value=matchers.Name("self")))
    ]
    reads += matchers.findall(module, matchers.SubscriptElement(matchers.Index(_text(option))))
    reads += [
        x for x in collect(module).calls if last_name(x.func) == "getattr" and _asks(x, option)
    ]
    return any(not _is_for(names, one, keyword) for one in reads)


def _text(option: str) -> matchers.SimpleString:
    return matchers.SimpleString(
        value=matchers.MatchIfTrue(lambda text: text.strip("rbuRBU'\"") == option)
    )


def _asks(call: cst.Call, option: str) -> bool:
    return any(matchers.matches(x.value, _text(option)) for x in call.args[1:2])


def _is_for(names: Names, read: cst.CSTNode, keyword: str) -> bool:
    """Whether a read is within such an argument, or what is printed."""
    node = names.parents.get(read)
    while node is not None and not isinstance(node, cst.BaseStatement):
        if isinstance(node, cst.Arg):
            if node.keyword is not None and node.keyword.value in (keyword, *_BESIDE):
                return True
            call = names.parents.get(node)
            if isinstance(call, cst.Call) and last_name(call.func) in _SHOWS:
                return True
        node = names.parents.get(node)
    return False
