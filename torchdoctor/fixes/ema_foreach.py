"""Average the weights of all layers at once.

## What it does
If a torch.optim.swa_utils.AveragedModel has an averaging function of its own (avg_fn), the fix
gives the one that handles all tensors together. The program's own loops are not recognized.

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

from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, TrainingAdvice, fact, process


def refuses(recording: Recording) -> Evidence | None:
    if not recording.main.flags.averaged_by_loop:
        return fact("no-own-averaging")
    return None


def instruction(settings: Settings, recording: Recording) -> str:
    return (
        "from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn\n"
        "averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))"
        "  # with the decay of your avg_fn"
    )


FIX = FixSpec(
    name="average weights all at once",
    keeps_results="changes training",
    untried="a short run does not show whether a model trains better.",
    refuses=refuses,
    sentences={
        "no-own-averaging": "No AveragedModel with an averaging function of the program's own was "
        "made.",
    },
    location=lambda recording: recording.main.flags.averaged_location,
    instruction=instruction,
    training=TrainingAdvice(
        costs="an average is a second copy of the weights in memory, and evaluation has to use it."
    ),
    offers=[(process(flags={"averaged_by_loop": 1}), "get_ema_multi_avg_fn")],
    refusals=[({}, "no-own-averaging")],
)
