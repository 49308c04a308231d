"""A decorator on a function that evaluates, where it is sure that nothing trains in it."""

import builtins
import sys
from collections.abc import Iterator

import libcst as cst

from torchdoctor.edits import DecoratorEdit
from torchdoctor.edits.changes import Changes, Reshaped
from torchdoctor.edits.syntax import NAMES, Program, Syntax, last_name, source_of

# What calls one of these trains: gradients must stay on in it.
_TRAINS = frozenset({"backward", "step", "grad", "manual_backward", "fit"})
_OFF = ("torch.no_grad()", "torch.inference_mode()", "torch.no_grad", "torch.inference_mode")
_LIKE_TRAINING = ("train", "fit", "learn", "optimi", "step", "closure")
_LIBRARIES = frozenset(sys.stdlib_module_names) | frozenset(NAMES["libraries"])
_HARMLESS = frozenset(NAMES["harmless_methods"]).union(
    *(dir(kind) for kind in (str, bytes, list, dict, set, float))
)


def with_decorator(program: Program, edit: DecoratorEdit) -> Changes | None:
    """Decorate the innermost function around the line; None if it trains, or that is not known."""
    function = program.innermost(program.of(cst.FunctionDef), edit.line)
    if function is None or not program.imports(edit.decorator.split(".", 1)[0]):
        return None
    present = [source_of(d.decorator) for d in function.decorators]
    if any(text in _OFF or text == edit.decorator for text in present):
        return []
    # Gradients would be on again before the first line of a coroutine runs.
    if function.asynchronous is not None or _Calls(program).may_train(function):
        return None

    def decorated(made: cst.CSTNode) -> list[cst.CSTNode]:
        definition = cst.ensure_type(made, cst.FunctionDef)
        added = cst.Decorator(decorator=cst.parse_expression(edit.decorator))
        # Comments above the function stay above its decorator.
        return [definition.with_changes(decorators=[*definition.decorators, added])]

    return [Reshaped(*program.place_of(function), f"@{edit.decorator}", decorated)]


class _Calls:
    """What each name that a file calls may lead to."""

    def __init__(self, program: Program) -> None:
        self.classes = {class_.name.value for class_ in program.of(cst.ClassDef)}
        self.methods: dict[str, list[cst.FunctionDef]] = {}
        self.functions: dict[str, list[cst.FunctionDef]] = {}
        owned = {line for scope in program.of(cst.ClassDef) for line in scope.body.body}
        for function in program.of(cst.FunctionDef):
            kind = self.methods if function in owned else self.functions
            kind.setdefault(function.name.value, []).append(function)
        roots = {name: full.split(".")[0] for name, full in program.imported.items()}
        self.libraries = {name for name, root in roots.items() if root in _LIBRARIES}
        self.own = roots.keys() - self.libraries
        self.set = {source_of(target) for target in program.targets}
        called = {source_of(call.func) for call in program.calls()}
        # What is called, or set to evaluate, is a module: its `train()` is a switch.
        self.models = called | {
            name.removesuffix(".eval") for name in called if name.endswith(".eval")
        }

    def may_train(self, function: cst.FunctionDef) -> bool:
        """Return True if gradients may be needed in a function, or in what it leads to here."""
        waiting = [function]
        visited = {function}
        while waiting:
            current = waiting.pop()
            if any(self._trains_or_unknown(call) for call in Syntax(current).calls()):
                return True
            further = set(self._named(current)) - visited
            visited |= further
            waiting += further
        return False

    def _named(self, function: cst.FunctionDef) -> Iterator[cst.FunctionDef]:
        """Yield the functions of this file that another one names: it may call them."""
        syntax = Syntax(function.body)
        attributes = syntax.of(cst.Attribute)
        no_reads = {attribute.attr for attribute in attributes} | {
            argument.keyword for argument in syntax.of(cst.Arg)
        }
        for name in syntax.of(cst.Name):
            if name not in no_reads:
                yield from self.functions.get(name.value, ())
        for attribute in attributes:
            if not self._is_switch(attribute):
                yield from self.methods.get(attribute.attr.value, ())

    def _is_switch(self, attribute: cst.Attribute) -> bool:
        """Return True for `model.train()`, which trains nothing."""
        owner = source_of(attribute.value)
        return attribute.attr.value in ("train", "eval") and owner in self.models

    def _trains_or_unknown(self, call: cst.Call) -> bool:
        name = last_name(call.func)
        called = call.func
        if name in _TRAINS:
            return True
        root: cst.CSTNode = called
        while isinstance(root, (cst.Attribute, cst.Subscript, cst.Call)):
            root = root.func if isinstance(root, cst.Call) else root.value
        begun = root.value if isinstance(root, cst.Name) else ""
        if begun in self.libraries or begun in self.own:
            return begun in self.own
        if isinstance(called, cst.Name):
            is_defined = name in self.functions or name in self.classes or hasattr(builtins, name)
            return not is_defined and any(word in name.lower() for word in _LIKE_TRAINING)
        if not isinstance(called, cst.Attribute):
            return False  # `models[0](x)`
        if name in self.methods or name in _HARMLESS or self._is_switch(called):
            return False
        # `self.model(x)`, where the program itself makes it.
        return source_of(called) not in self.set or any(
            word in name.lower() for word in _LIKE_TRAINING
        )
