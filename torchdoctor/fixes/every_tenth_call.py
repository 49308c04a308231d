"""Call what only reports every tenth time.

## What it does
Answers nine of ten calls of a function of the program's own with its last result. Only where the
source shows that nothing but prints and logs read the result, and that the function changes nothing
else.

## Why it helps
A metric, a histogram or a check that is computed in each step and read in every hundredth costs a
hundred times what it has to.

## Risks
What is reported is up to nine calls old, unless the call is moved to where it is read. Where ranks
meet in it, it is not tried.

## Make it permanent
    if step % 100 == 0:            # where it is read
        value = metric.compute()
        print(step, value)

## Sources
- TorchMetrics, quick start: https://lightning.ai/docs/torchmetrics/stable/pages/quickstart.html
"""

from typing import Any

from torchdoctor.edits import Edit, RareCallEdit
from torchdoctor.edits.unused_results import has_call, holds_collectives, reporter
from torchdoctor.fixes._parts import SampledLines, asked_once
from torchdoctor.queries.hot_calls import SampledCode, files_of_calls, hot_calls
from torchdoctor.queries.lookup import place
from torchdoctor.schema import Example, FixSpec, Recording, Settings, StackSample

_EVERY = 10


@asked_once
def _calls(recording: Recording) -> list[tuple[SampledCode, tuple[str, str]]]:
    """Return the calls, each with file and name of the function that is to be called rarely."""
    calls = []
    for call in hot_calls(recording):
        files = files_of_calls(recording, call.location.file)
        reported = reporter(files, call.function) if "loader" not in call.phases else None
        calls += [(call, reported)] if reported is not None else []
    return calls


def by_hand(recording: Recording) -> bool:
    """Return True where ranks meet in the call: a trial would leave it out at different steps."""
    if (recording.main.world_size or 1) < 2:
        return False
    return any(
        holds_collectives(files_of_calls(recording, call.location.file), name)
        for call, (_, name) in _calls(recording)
    )


def _rows(recording: Recording) -> list[StackSample]:
    return [row for call, _ in _calls(recording)[:1] for row in call.rows]


_CALL = SampledLines(
    rows=_rows,
    label="the call that only reports",
    none="No function was seen that takes long and only reports.",
)


def settings(recording: Recording) -> list[Settings]:
    return [
        {"function": name, "every": _EVERY, "file": file}
        for _, (file, name) in _calls(recording)[:1]
    ]


def instruction(settings: Settings, recording: Recording) -> str:
    calls = [place(recording, call.location) for call, _ in _calls(recording)]
    where = next(filter(None, calls), settings["file"])
    return f"# {settings['function']} ({where})\n{FIX.permanent_form}"


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    name = settings["function"]
    every = settings["every"]
    return [
        RareCallEdit(file=file, function=name, every=every)
        for file in files_of_calls(recording, settings["file"])
        if has_call(file, name)
    ]


def apply(torch: Any, settings: Settings, program: Any) -> None:
    every: int = settings["every"]
    counts: dict[int | None, tuple[int, Any]] = {}

    def make(old: Any) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            owner = id(args[0]) if args else None
            count, value = counts.get(owner, (0, None))
            if not program.usable or count % every == 0:
                value = old(*args, **kwargs)
            else:
                program.applied()
            counts[owner] = (count + 1, value)
            return value

        return function

    program.set_reason("function-not-called")
    program.replace_function(settings["file"], settings["function"], make)


FIX: FixSpec = FixSpec(
    name="every tenth call",
    treats=("hot-call", "work-outside-model", "growing-step"),
    keeps_results="exactly",
    keeps_but="what is reported is up to nine calls old",
    when="between steps",
    p_helps=0.8,
    needs_finding=True,
    refuses=_CALL.refuses,
    sentences=_CALL.sentences,
    by_hand=by_hand,
    suits=lambda trace: False,
    settings=settings,
    says=lambda settings: f"call {settings.get('function', 'it')} every tenth time",
    touches=_CALL.touches,
    apply=apply,
    location=_CALL.location,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
calls = []
class Metric:
    def compute(self):
        calls.append(1)
        return len(calls)
model, metric = torch.nn.Linear(1, 1), Metric()
data = torch.utils.data.TensorDataset(torch.ones(40, 1))
for (x,) in torch.utils.data.DataLoader(data, batch_size=2):
    model(x).sum().backward()
    value = metric.compute()
print("called rarely:", len(calls) < 5)
""",
        settings={"every": 10, "file": "example.py", "function": "compute"},
        without="called rarely: False",
        with_fix="called rarely: True",
    ),
)
