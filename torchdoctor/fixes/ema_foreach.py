"""Average the weights of all layers at once.

## What it does
If a torch.optim.swa_utils.AveragedModel has an averaging function of its own (avg_fn), the fix
gives the one that handles all tensors together. In a trial launch it takes that function's place,
if it is a moving average with a constant decay. The program's own loops are not recognized.

## Why it helps
avg_fn launches a few small kernels for every parameter, multi_avg_fn a handful for all together.

## Risks
The averages round differently in the last bit. An averaged model often does better, but it is a
second copy of the weights in memory, and evaluation has to use it.

## Make it permanent
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))

## Sources
- PyTorch, torch.optim, "Weight Averaging": https://docs.pytorch.org/docs/stable/optim.html
"""

from typing import Any

from torchdoctor.words import Example, FixSpec, Recording, Settings, TrainingAdvice, process

_NUMBERS = ((0.5, -1.25), (3.0, 2.0), (-0.75, 4.5))  # averaged, current
_AGREES = 1e-6


def refuses(recording: Recording) -> str | None:
    if not recording.main.flags.averaged_by_loop:
        return "No AveragedModel with an averaging function of the program's own was made."
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    swa_utils, averaged = torch.optim.swa_utils, set()

    def choose(model: Any) -> None:
        if id(model) in averaged:
            return
        averaged.add(id(model))
        if model.avg_fn is None or getattr(model, "multi_avg_fn", None) is not None:
            return
        decay = _decay(torch, model.avg_fn)
        if decay is None:
            program.refuse("The averaging function is no moving average with a constant decay.")
        model.multi_avg_fn = swa_utils.get_ema_multi_avg_fn(decay)
        program.applied(decay=decay)

    def make(old: Any) -> Any:
        def update_parameters(self: Any, model: Any) -> Any:
            program.guarded(choose, self)
            return old(self, model)

        return update_parameters

    program.set_reason("No averaged model was updated.")
    program.replace(swa_utils.AveragedModel, "update_parameters", make)


def _decay(torch: Any, average: Any) -> float | None:
    """Return the decay d of d * averaged + (1 - d) * current; None: it is another function."""
    decays = []
    for count in (1, 1000):
        for averaged, current in _NUMBERS:
            pair = [torch.tensor([x], dtype=torch.float64) for x in (averaged, current)]
            with torch.no_grad():
                mean = float(average(*pair, torch.tensor(count)))
            decays.append((mean - current) / (averaged - current))
    decay = round(decays[0], 9)
    alike = all(abs(x - decay) <= _AGREES for x in decays)
    return decay if alike and 0.0 <= decay <= 1.0 else None


def instruction(settings: Settings, recording: Recording) -> str:
    decay = settings.get("decay", 0.999)
    own = "" if "decay" in settings else "  # with the decay of your avg_fn"
    return (
        "from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn\n"
        f"averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn({decay:g})){own}"
    )


FIX = FixSpec(
    name="average weights all at once",
    keeps_results="changes training",
    refuses=refuses,
    apply=apply,
    location=lambda recording: recording.main.flags.averaged_location,
    instruction=instruction,
    training=TrainingAdvice(
        costs="an average is a second copy of the weights in memory, and evaluation has to use it."
    ),
    offers=[(process(flags={"averaged_by_loop": 1}), "get_ema_multi_avg_fn")],
    refusals=[({}, "No AveragedModel")],
    example=Example(
        code="""
from torch.optim.swa_utils import AveragedModel
model, calls = torch.nn.Linear(2, 1, dtype=torch.float64), []
torch.nn.init.constant_(model.weight, 1.0)
def average(averaged, current, count):
    calls.append(1)
    return 0.75 * averaged + 0.25 * current
averaged = AveragedModel(model, avg_fn=average)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    optimizer.step()
    before = len(calls)
    averaged.update_parameters(model)
print("%.4f" % averaged.module.weight[0, 0].item(), "calls in the last step:", len(calls) - before)
""",
        without="-1.2656 calls in the last step: 2",
        with_fix="-1.2656 calls in the last step: 0",
    ),
)
