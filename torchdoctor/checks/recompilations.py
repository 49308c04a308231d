"""torch.compile compiles again while training goes on.

## What it means
torch.compile makes a version of a function for the inputs that it has met, with guards on sizes,
types and Python values. If a guard fails, torch compiles the function again, which takes from a
tenth of a second to minutes. After eight versions (`recompile_limit`, in torch 2.6
and older `cache_size_limit`) torch gives the function up and runs it as if it had not been
compiled.

## What to do
Make what changes the same, or say that it changes. Sizes: pad them to a few lengths, drop the last
and smaller batch (`drop_last=True`), or use `torch.compile(dynamic=True)`. Python numbers that
count up: pass them as tensors. `TORCH_LOGS=recompiles` names the guard that failed. If a few more
versions are all there are, allow them by `torch._dynamo.config` and that name.

## How it is measured
In the observing launch, torch's own counters give the compilations after the first training step,
their time against the time since then, why guards failed, and which functions were given up. In a
trace, the time counts in which something is compiled. Up to three further versions of a function
are normal (the last and smaller batch, evaluation, its last batch).

## Not to be confused with
The first compilation, which every process pays once. Graph breaks, which cut a function in pieces.
"""

from typing import Any

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process, trace

_NORMAL = 3  # further versions of a function: the last batch, evaluation, the last batch of that
_NAMED = 3


def _examine(recording: Recording) -> Symptoms:
    compiled = recording.main.compilation
    if compiled is None:  # a run's own counters know more than a trace
        yield from _of_trace(recording)
        return
    share = compiled.later_s / compiled.watched_s if compiled.watched_s > 0 else 0.0
    often = compiled.later_most > _NORMAL and share >= CHECK.threshold
    reasons = compiled.recompile_reasons
    gave_up = compiled.gave_up
    if not often and not gave_up:
        return
    evidence = []
    if compiled.later_recompiles:
        evidence.append(
            fact(
                "again",
                times=compiled.later_recompiles,
                seconds=compiled.later_s,
                of_seconds=compiled.watched_s,
            )
        )
    evidence += [
        fact("guard", location=reason.location, reason=reason.reason) for reason in reasons[:_NAMED]
    ]
    evidence += [
        fact("given-up", function=lost.function, reason=lost.reason) for lost in gave_up[:_NAMED]
    ]
    location = reasons[0].location if reasons else None
    yield Symptom(share=share or None, evidence=[*evidence, fact("see-guards")], location=location)


def _of_trace(recording: Recording) -> Symptoms:
    traced = recording.trace
    if traced is None or traced.compilation is None or not traced.step_s or not traced.steps:
        return
    compiled = traced.compilation
    share = traced.compilation.compile_s / traced.step_s
    if share < CHECK.threshold:
        return
    evidence = [
        fact(
            "at-work",
            share=share,
            steps_with=compiled.steps_with,
            steps=traced.steps,
            functions=round(compiled.compiles_per_step * traced.steps),
        )
    ]
    all_new = compiled.again == 0
    if all_new:
        evidence.append(fact("all-new"))
    else:
        if compiled.again:
            evidence.append(fact("further-versions", functions=compiled.again))
        evidence.append(fact("see-guards"))
    yield Symptom(share=share, evidence=evidence, severity="advice" if all_new else None)


_SIZES = {"reason": "tensor 'x' size mismatch at index 0. expected 4, actual 5"}
_GIVEN_UP = {"function": "'forward' (/w/train.py:5)", "reason": "self.calls == 7"}
_AGAIN = {"watched_s": 12.0, "later_recompiles": 5, "later_most": 5, "later_s": 6.0}
_WORK = {"compiles_per_step": 0.5, "compile_s": 0.06, "steps_with": 2}


def _run(**changes: object) -> dict[str, Any]:
    return process(compilation={"recompile_reasons": [_SIZES], **_AGAIN, **changes})


CHECK = CheckSpec(
    branch="cpu",
    threshold=0.05,
    unit="% of the time since the first step",
    source="torchdoctor: as for waiting for data (XProf: 5 %); "
    "four and more versions more of one function",
    sentences={
        "again": "torch.compile compiled again {times:counted time} after {first_step}: "
        "{seconds:seconds} of the {of_seconds:seconds} since then.",
        "guard": "[{location:place}: ]{reason}.",
        "given-up": "torch has given {function} up, which runs as if it was not compiled: "
        "{reason}.",
        "at-work": "torch.compile is at work in {steps_with} of the {steps} steps, on "
        "{functions:counted function}: {share:.0%} of the mean step.",
        "all-new": "All of them are compiled for the first time: the trace begins too early to "
        "show the usual step; torch.profiler.schedule(wait=10, ...) leaves these steps out.",
        "further-versions": "{functions} of them are further versions: a guard has failed.",
        "see-guards": "TORCH_LOGS=recompiles shows each guard that fails; where sizes vary, "
        "dynamic=True or torch._dynamo.mark_dynamic(x, 0) makes one version for all.",
    },
    examine=_examine,
    fires=[
        _run(),
        _run(later_recompiles=0, later_most=0, later_s=0.0, gave_up=[_GIVEN_UP]),
        trace(compilation={**_WORK, "again": 2}),
        trace(compilation={**_WORK, "again": 0}),
    ],
    quiet=[
        _run(later_recompiles=15, later_most=3),  # in five pieces, with evaluation's last batch
        _run(later_s=0.1),
        process(compilation={"graphs": 1}),
        trace(compilation={**_WORK, "compile_s": 0.0001}),
    ],
)
