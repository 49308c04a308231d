"""Compute several waiting inputs in one call of the model.

## What it does
It gives the call to write, or the settings by which requests to a language model share a step.

## Why it helps
Several inputs in one call share its Python, kernel launches, and reading of all weights.

## Risks
Each answer comes when its whole batch is done, so it may come later. Memory grows with the batch.

## Make it permanent
    with torch.inference_mode():
        outputs = model(torch.cat(inputs))   # batches of one; torch.stack(inputs) if they are none

## Sources
- vLLM, Optimization and Tuning: https://docs.vllm.ai/en/latest/configuration/optimization.html
"""

from torchdoctor.schema import Evidence, FixSpec, Recording, fact, trace

_ENGINE = (
    "# Let more requests share a step, as far as the cache of keys and values has room:\n"
    "vllm serve MODEL --max-num-seqs 512 --max-num-batched-tokens 16384\n"
    "python -m sglang.launch_server --model-path MODEL --max-running-requests 512"
)


def refuses(recording: Recording) -> Evidence | None:
    if recording.infers:
        return None
    if recording.trace is None or recording.trace.trains is not False:
        return fact("trains-use-larger-batch")
    return None


def advice(recording: Recording) -> str | None:
    engine = recording.trace is not None and recording.trace.has_engine
    return _ENGINE if engine else FIX.permanent_form


FIX = FixSpec(
    name="batched inference",
    treats=("batch-of-one", "python-overhead", "many-small-kernels", "launches-outside-graphs"),
    keeps_results="within rounding",
    untried="only the program knows which inputs wait.",
    no_bound="How many inputs wait, and what each adds to a call, was not recorded.",
    refuses=refuses,
    sentences={
        "trains-use-larger-batch": "The program trains: larger-batch is for that.",
    },
    suits=lambda trace: trace.trains is False,
    advice=advice,
    instruction=lambda settings, recording: advice(recording) or "",
    offers=[
        (trace(trains=False), "torch.stack(inputs)"),
        (trace(trains=False, has_engine=True), "--max-num-seqs"),
    ],
    refusals=[({}, "trains-use-larger-batch")],
)
