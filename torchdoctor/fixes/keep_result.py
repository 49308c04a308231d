"""Keep the result of a call that computes the same each time.

## What it does
Answers a function of the program's own that holds much of the step from memory, where its arguments
are those of an earlier call: the same objects, unchanged, or equal values. The first answers, and
every 32nd one, are computed anyway and compared, and the fix ends where they differ.

## Why it helps
A normalized adjacency, a mask, a table of positions or a kernel that depends on nothing that
changes is computed once.

## Risks
What the function does beside returning its result (it counts, or writes to a file) is left out. A
result that is changed in place, or that carries gradients, is not kept.

## Make it permanent
    if self.kept is None:                 # in a field, or as a buffer of the module
        self.kept = function(arguments)
    result = self.kept
    # or, of arguments that are the same objects, unchanged: @functools.lru_cache above the function

## Sources
- Python documentation, functools.cache: https://docs.python.org/3/library/functools.html
"""

from typing import Any

from torchdoctor.edits import Edit, KeptResultEdit
from torchdoctor.edits.differing_calls import differs_each_call
from torchdoctor.fixes._parts import SampledLines, asked_once
from torchdoctor.queries.hot_calls import SampledCode, files_of_calls, hot_calls
from torchdoctor.queries.lookup import place
from torchdoctor.schema import Example, FixSpec, Recording, Settings, StackSample

_MOST_KEPT = 8  # results
_MISSES = 12  # calls without any answer, after which there is none to expect
_COMPARED, _EVERY = 2, 32  # answers that are computed anyway: the first ones, and then each 32nd
_NEVER_SAME = ("__getitem__", "__getitems__", "__iter__", "__next__", "collate", "collate_fn")
_TRIED = 2


@asked_once
def _calls(recording: Recording) -> list[SampledCode]:
    return [
        call
        for call in hot_calls(recording)
        if call.function not in _NEVER_SAME
        and not differs_each_call(files_of_calls(recording, call.location.file), call.function)
    ]


def _rows(recording: Recording) -> list[StackSample]:
    return [row for call in _calls(recording)[:1] for row in call.rows]


_CALL = SampledLines(
    rows=_rows,
    label="the call whose result is kept",
    none="No function of the program's own holds a twentieth of the step.",
)


def settings(recording: Recording) -> list[Settings]:
    calls = _calls(recording)[:_TRIED]
    return [{"function": call.function, "file": call.location.file} for call in calls]


def instruction(settings: Settings, recording: Recording) -> str:
    where = next(
        (
            place(recording, call.location)
            for call in _calls(recording)
            if call.function == settings["function"]
        ),
        None,
    )
    return f"# {settings['function']} ({where or settings['file']})\n{FIX.permanent_form}"


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    lines = [call.location for call in _calls(recording) if call.function == settings["function"]]
    return [
        KeptResultEdit(file=at.file, line=at.line, function=settings["function"], kept=_MOST_KEPT)
        for at in lines[:1]
    ]


def apply(torch: Any, settings: Settings, program: Any) -> None:
    kept = _Kept(torch, program)
    program.set_reason("function-not-called")
    program.replace_function(settings["file"], settings["function"], kept.answering)


class _Entry:
    def __init__(self, noted: tuple[Any, Any], result: Any, result_versions: Any) -> None:
        self.arguments, self.versions = noted
        self.result = result
        self.result_versions = result_versions
        self.answers = 0

    def is_trusted(self) -> bool:
        """Count an answer; return True if it need not be computed to compare."""
        self.answers += 1
        return self.answers > _COMPARED and self.answers % _EVERY != 0


class _Kept:
    """Arguments and results of earlier calls."""

    def __init__(self, torch: Any, program: Any) -> None:
        self.torch = torch
        self.program = program
        self.entries: list[_Entry] = []
        self.calls = self.hits = 0

    def answering(self, old: Any) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            if not self.program.usable:
                return old(*args, **kwargs)
            entry = self.program.guarded(self.find, args, kwargs)
            if entry is not None and entry.is_trusted():
                self.program.applied()
                return entry.result
            # Its arguments before the call, which may change them.
            noted = self.program.guarded(self.note, args, kwargs)
            result = old(*args, **kwargs)
            if noted is not None and self.program.usable:
                self.program.guarded(self.keep, entry, noted, result)
            return result

        return function

    def find(self, args: Any, kwargs: Any) -> _Entry | None:
        """Return the earlier call with these arguments."""
        self.calls += 1
        leaves = [*args, *kwargs.items()]
        for entry in self.entries:
            if len(entry.arguments) == len(leaves) and all(
                map(self.same, entry.arguments, entry.versions, leaves)
            ):
                if entry.result_versions != self.versions(entry.result):
                    self.program.refuse("changes-its-result")
                self.hits += 1
                return entry
        if self.calls > _MISSES and not self.hits:
            self.program.refuse("arguments-differ")
        return None

    def same(self, before: Any, version: Any, now: Any) -> bool:
        if isinstance(now, tuple):
            alike = isinstance(before, tuple) and len(before) == len(now)
            return alike and all(map(self.same, before, version, now))
        if isinstance(now, (int, float, str, bytes, type(None))):
            return type(before) is type(now) and bool(before == now)
        if self.program.is_array(now):
            return self.program.is_array(before) and self.equal(before, now)
        return before is now and version == self.version(now)

    def note(self, args: Any, kwargs: Any) -> Any:
        """Return arguments that can be compared later, and the versions of their tensors."""
        leaves = [
            argument.copy() if self.program.is_array(argument) else argument
            for argument in [*args, *kwargs.items()]
        ]
        return leaves, [self.version(leaf) for leaf in leaves]

    def version(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return [self.version(part) for part in value]
        return value._version if isinstance(value, self.torch.Tensor) else 0

    def versions(self, value: Any) -> list[int]:
        return [self.version(leaf) for leaf in self.leaves(value)]

    def leaves(self, value: Any) -> list[Any]:
        return list(self.torch.utils._pytree.tree_leaves(value))

    def keep(self, entry: _Entry | None, noted: Any, result: Any) -> None:
        """Keep a result, or compare it with what would have been answered."""
        leaves = self.leaves(result)
        tensors = [leaf for leaf in leaves if isinstance(leaf, self.torch.Tensor)]
        if any(tensor.requires_grad for tensor in tensors):
            self.program.refuse("result-carries-gradients")
        if all(leaf is None for leaf in leaves):
            self.program.refuse("returns-nothing-to-keep")
        if entry is not None:
            kept_leaves = self.leaves(entry.result)
            if len(kept_leaves) != len(leaves) or not all(map(self.equal, kept_leaves, leaves)):
                self.program.refuse("another-result")
            return
        del self.entries[: max(len(self.entries) + 1 - _MOST_KEPT, 0)]
        self.entries.append(_Entry(noted, result, self.versions(result)))

    def equal(self, kept: Any, other: Any) -> bool:
        if isinstance(kept, self.torch.Tensor):
            if type(kept) is not type(other) or kept.layout != other.layout:
                return False
            parts: tuple[str, ...] = ("crow_indices", "col_indices", "values")
            if kept.layout == self.torch.sparse_coo:
                kept, other, parts = kept.coalesce(), other.coalesce(), ("indices", "values")
            elif kept.layout != self.torch.sparse_csr:
                return kept.shape == other.shape and bool(self.torch.equal(kept, other))
            pairs = [(getattr(kept, part)(), getattr(other, part)()) for part in parts]
            return all(a.shape == b.shape and self.torch.equal(a, b) for a, b in pairs)
        if self.program.is_array(kept):
            alike = self.program.is_array(other) and kept.shape == other.shape
            return bool(alike and kept.dtype == other.dtype and kept.tobytes() == other.tobytes())
        return type(kept) is type(other) and bool(kept == other)


FIX: FixSpec = FixSpec(
    name="keep a result",
    treats=("hot-call",),
    keeps_results="exactly",
    keeps_but="what the function does beside returning its result is left out",
    when="between steps",
    p_helps=0.4,
    needs_finding=True,
    refuses=_CALL.refuses,
    sentences=_CALL.sentences
    | {
        "changes-its-result": "The program changes its result in place.",
        "arguments-differ": "Its arguments differ from call to call.",
        "result-carries-gradients": "Its result carries gradients.",
        "returns-nothing-to-keep": "It returns nothing that could be kept.",
        "another-result": "The same arguments give another result.",
    },
    suits=lambda trace: False,
    settings=settings,
    says=lambda settings: f"keep what {settings.get('function', 'the function')} returns",
    touches=_CALL.touches,
    apply=apply,
    location=_CALL.location,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
calls = []
def table(n, x):
    calls.append(n)
    return torch.arange(n) * x.sum()
model, x = torch.nn.Linear(4, 1), torch.ones(4)
data = torch.utils.data.TensorDataset(torch.ones(80, 4))
for (batch,) in torch.utils.data.DataLoader(data, batch_size=4):
    (model(batch).sum() + table(4, x).sum()).backward()
print("few calls:", len(calls) < 8, table(4, x).tolist())
""",
        settings={"file": "example.py", "function": "table"},
        without="few calls: False [0.0, 4.0, 8.0, 12.0]",
        with_fix="few calls: True [0.0, 4.0, 8.0, 12.0]",
    ),
)
