"""Make the model once, and keep it for later calls.

## What it does
Where a function makes the model that it calls, later calls get the one that was made before, for
the same values of the names that decide which it is. At first it is made anyway and compared: its
class, its mode, and all parameters and buffers. Where they differ, or the program changes the model
meanwhile, it is made anew as before.

## Why it helps
Building a model fills its parameters with random numbers, loading reads a file and copies it, and
`torch.compile` starts from nothing. A call then computes for a fraction of that time.

## Risks
A file of weights that is replaced meanwhile is not loaded again. Up to four models stay in memory.

## Make it permanent
    @functools.cache
    def model_of(path):
        model = Net()
        model.load_state_dict(torch.load(path))
        return model.eval()

## Sources
- Python documentation, functools.cache: https://docs.python.org/3/library/functools.html
"""

import ast
from pathlib import Path
from typing import Any

from torchdoctor.edits import Edit, KeptModelEdit
from torchdoctor.edits.made_models import MadeModel, made_model
from torchdoctor.fixes._parts import asked_once
from torchdoctor.queries.hot_calls import sampled_calls
from torchdoctor.queries.lookup import place, training_models
from torchdoctor.queries.stacks import function_of, making_rows
from torchdoctor.schema import (
    Binding,
    Evidence,
    Example,
    FixSpec,
    Location,
    Recording,
    Settings,
    StackSample,
    Touches,
    fact,
    process,
)

_LEAST = 3  # times that it was made anew
_COMPARED = 2  # models that are made anyway, to compare
_MOST_KEPT = 4
_MISSES = 12  # models of other names, after which none is expected to come again


def _calls(recording: Recording) -> list[Binding]:
    """Return the lines that call a model which was made anew, and what it is called there."""
    models = [m for m in training_models(recording) if m.made_anew >= _LEAST]
    return [
        binding for model in models for binding in (model.call, model.holder) if binding is not None
    ]


def refuses(recording: Recording) -> Evidence | None:
    if not recording.infers:
        return fact("for-programs-that-infer")
    if not any(m.made_anew >= _LEAST for m in training_models(recording)):
        return fact("models-made-once")
    return None


@asked_once
def _found(recording: Recording) -> tuple[Binding, MadeModel] | None:
    """Return the line that calls the model, and the statements that make it, where it is sure."""
    for call in _calls(recording):
        try:
            source = Path(call.location.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        made = made_model(source, call.location.line, call.name)
        if made is not None:
            return call, made
    return None


def _rows(recording: Recording) -> list[StackSample]:
    """Return the samples of making the model: in torch, and in the program's own code for it."""
    rows = making_rows(recording)
    functions = {function_of(row) for row in rows}
    call_and_made = _found(recording)
    if call_and_made is None:
        return rows
    call, made = call_and_made
    here = (call.location.file, made.function or "<module>")

    def makes(row: StackSample) -> bool:
        if function_of(row) == here:
            return made.first <= row.location.line <= made.last
        return function_of(row) in functions and row.phase != "forward"

    return [row for row in recording.main.stacks if makes(row)]


def touches(recording: Recording) -> Touches:
    return sampled_calls(recording, _rows(recording), "making the model")


def settings(recording: Recording) -> list[Settings]:
    call_and_made = _found(recording)
    if call_and_made is None:
        return []
    call, made = call_and_made
    file = call.location.file
    if not made.in_loop:
        lines = {"first": made.first, "last": made.last}
        names = {"name": made.name, "given": list(made.given)}
        return [{"file": file, "function": made.function, **lines, **names}]
    # The loop goes on while its function runs: only what it calls can be replaced.
    return [{"file": file, "function": made.maker}] if made.maker is not None else []


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    call_and_made = _found(recording)
    if call_and_made is None:
        return []
    call = call_and_made[0]
    return [KeptModelEdit(file=call.location.file, line=call.location.line, name=call.name)]


def location(recording: Recording) -> Location | None:
    call_and_made = _found(recording)
    if call_and_made is None:
        return next((call.location for call in _calls(recording)), None)
    call, made = call_and_made
    return Location(file=call.location.file, line=made.first, function=made.function or None)


def instruction(settings: Settings, recording: Recording) -> str:
    where = place(recording, location(recording), "where it is made")
    return f"{where}  make the model once, and keep it\n{FIX.permanent_form}"


class _Kept:
    """The models that were made, by the values of the names that decide which they are."""

    def __init__(self, torch: Any, program: Any) -> None:
        self.torch = torch
        self.program = program
        self.models: dict[Any, tuple[Any, Any]] = {}  # with their state when they were made
        self.compared: dict[Any, int] = {}

    def find(self, *given: Any) -> Any:
        """Return the model that was made before; None: it is to be made."""
        if not self.program.usable:
            return None
        return self.program.guarded(self._find, given)

    def _find(self, given: Any) -> Any:
        if given not in self.models:
            if len(self.models) >= _MISSES:
                self.program.refuse("another-model-each-call")
            return None
        model, state = self.models[given]
        if self.state_of(model) != state:
            self.program.refuse("model-changed-later")
        if self.compared[given] < _COMPARED:
            return None
        self.program.applied()
        return model

    def keep(self, model: Any, *given: Any) -> Any:
        """Return the model that is used: the one that was made before, if this one is as it."""
        if not self.program.usable:
            return model
        kept = self.program.guarded(self._keep, model, given)
        return model if kept is None else kept

    def _keep(self, model: Any, given: Any) -> Any:
        if given in self.models:
            before = self.models[given][0]
            self.compared[given] += 1
            if not self.is_same(before, model):
                self.program.refuse("another-model-each-time")
            return before
        if len(self.models) < _MISSES:
            self.models[given] = model, self.state_of(model)
            self.compared[given] = 0
        return model

    def inner(self, model: Any) -> Any:
        """Return the module of a model, or of what holds one: a pipeline, a predictor."""
        module = model if isinstance(model, self.torch.nn.Module) else getattr(model, "model", None)
        if not isinstance(module, self.torch.nn.Module):
            self.program.refuse("makes-no-module")
        return module

    def tensors(self, model: Any) -> dict[str, Any]:
        module = self.inner(model)
        return dict([*module.named_parameters(), *module.named_buffers()])

    def state_of(self, model: Any) -> Any:
        """Return what tells whether a model was changed in place since."""
        tensors = self.tensors(model).items()
        return [
            (name, id(tensor), 0 if tensor.is_inference() else tensor._version)
            for name, tensor in tensors
        ]

    def is_same(self, kept: Any, other: Any) -> bool:
        ours = self.inner(kept)
        theirs = self.inner(other)
        modes = [
            [(type(module), module.training) for module in m.modules()] for m in (ours, theirs)
        ]
        if type(kept) is not type(other) or modes[0] != modes[1]:
            return False
        before = self.tensors(kept)
        after = self.tensors(other)
        return before.keys() == after.keys() and all(
            tensor.shape == after[name].shape and bool(self.torch.equal(tensor, after[name]))
            for name, tensor in before.items()
        )

    def answering(self, old: Any) -> Any:
        """Return a function that makes a model, in place of the program's own."""

        def function(*args: Any, **kwargs: Any) -> Any:
            given = (*args, *kwargs.items())
            kept_model = self.find(*given)
            return self.keep(old(*args, **kwargs), *given) if kept_model is None else kept_model

        return function


_HOLDER = "_torchdoctor_kept_models"


class _Statements(ast.NodeTransformer):
    """Puts `if` around the statements of certain lines: there is no such model yet."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.found = False

    def generic_visit(self, node: Any) -> Any:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, self.within(block))
        return node

    def within(self, block: list[Any]) -> list[Any]:
        first = self.settings["first"]
        last = self.settings["last"]
        numbers = [
            n
            for n, statement in enumerate(block)
            if first <= getattr(statement, "lineno", 0) <= last
        ]
        if not numbers or block[numbers[0]].lineno != first or self.found:
            return block
        self.found = True
        name = self.settings["name"]
        given = ", ".join(self.settings["given"])
        code = f"{name} = {_HOLDER}.find({given})\nif {name} is None:\n    {name} = 0\n"
        code += f"    {name} = {_HOLDER}.keep({name}, {given})"
        find, made = ast.parse(code).body
        statements = block[numbers[0] : numbers[-1] + 1]
        made.body[:1] = statements  # type: ignore[attr-defined]
        for node in (find, made.body[-1], made):  # type: ignore[attr-defined]
            for part in ast.walk(node):
                if hasattr(part, "lineno") and part not in statements:
                    ast.copy_location(part, statements[0])
        return [*block[: numbers[0]], find, made, *block[numbers[-1] + 1 :]]


def _code_with(code: Any, settings: Settings) -> Any:
    """Return a function's code in which these statements run once; None: it is not as it was."""
    tree = ast.parse(Path(settings["file"]).read_text(encoding="utf-8"))
    statements = _Statements(settings)
    tree = statements.visit(tree)
    waiting = [compile(tree, code.co_filename, "exec", dont_inherit=True)]
    while waiting and statements.found:
        each = waiting.pop()
        if (each.co_name, each.co_firstlineno) == (code.co_name, code.co_firstlineno):
            return each if each.co_freevars == code.co_freevars else None
        waiting += [constant for constant in each.co_consts if isinstance(constant, type(code))]
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    kept = _Kept(torch, program)
    program.set_reason("no-model-made-twice")
    if "first" not in settings:
        program.replace_function(settings["file"], settings["function"], kept.answering)
        return

    def change(function: Any) -> None:
        code = _code_with(function.__code__, settings)
        if code is None:
            program.refuse("function-not-as-in-file")
        function.__globals__[_HOLDER] = kept
        function.__code__ = code

    def keeping(old: Any) -> Any:
        change(program.undecorated(old))
        return lambda *args, **kwargs: old(*args, **kwargs)

    program.replace_function(settings["file"], settings["function"], keeping)


_INFERS = {"steps": {"boundary": {"kind": "forward", "learned_by": "forward"}}}
FIX: FixSpec = FixSpec(
    name="keep the model",
    treats=("model-made-anew",),
    keeps_results="exactly",
    p_helps=0.8,  # it is seen to be made again
    needs_finding=True,
    refuses=refuses,
    sentences={
        "models-made-once": "Each model is made once.",
        "another-model-each-call": "Each call makes another model.",
        "model-changed-later": "The program changes the model after it was made.",
        "another-model-each-time": "Each model that is made is another one.",
        "makes-no-module": "What is made is no module.",
        "no-model-made-twice": "No model was made a second time.",
        "function-not-as-in-file": "The function is not as its file has it.",
    },
    settings=settings,
    by_hand=lambda recording: not settings(recording),
    touches=touches,
    apply=apply,
    location=location,
    instruction=instruction,
    edits=edits,
    refusals=[
        ({}, "for-programs-that-infer"),
        ({**_INFERS, **process(models=[{"ident": 0, "forwards": 9}])}, "models-made-once"),
    ],
    example=Example(
        code="""
made = []
class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)
        made.append(self)
def load():
    torch.manual_seed(0)
    return Net().eval()
def answer(x):
    model = load()
    return model(x)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(40, 1)))
with torch.no_grad():
    answers = {float(answer(x)) for (x,) in data}
print("answers:", len(answers), "few models:", len(made) < 8)
""",
        settings={"file": "example.py", "function": "load"},
        without="answers: 1 few models: False",
        with_fix="answers: 1 few models: True",
    ),
)
