"""Does the step wait for data?

## What it means
While the training process waits for the batch, the device (or the CPU's arithmetic) is idle.

## How it is measured
The probe times `next()` of the DataLoader's iterator and `iter(loader)`; on a GPU only the part
counts that no kernel hides (exposed time). If no DataLoader feeds the loop, the host's time between
a step's end and the next forward counts too, where sampled stacks show that it prepares a batch.

## Not to be confused with
The time that workers take to prepare a batch: hidden behind the computation it costs nothing.
"""

from torchdoctor.queries.loading import TRACED_WORKERS, traced_workers
from torchdoctor.queries.lookup import training_loader_location
from torchdoctor.schema import (
    CheckSpec,
    Recording,
    StepStatistics,
    Symptom,
    Symptoms,
    TreeQuestion,
    fact,
)

_MODERATE = 0.05
_NAMED = 0.01  # share of the step from which a part of the wait is named


def _examine(recording: Recording) -> Symptoms:
    share = recording.shares.data_loader
    steps = recording.steps
    if share is None or share < _MODERATE:
        return
    evidence = [fact("waits", share=share)]
    if steps is not None and steps.data_wait_s >= _NAMED * steps.mean_s:
        in_loop_s = share * steps.mean_s - steps.data_wait_s - steps.loader_start_s
        evidence.append(
            fact(
                "parts",
                in_loader_s=_if_long(steps.data_wait_s, steps),
                starting_workers_s=_if_long(steps.loader_start_s, steps),
                in_loop_s=_if_long(in_loop_s, steps),
                step_s=steps.mean_s,
            )
        )
    workers = traced_workers(recording)
    evidence += [workers] if workers is not None else []
    yield Symptom(share=share, evidence=evidence, location=training_loader_location(recording))


def _if_long(wait_s: float, steps: StepStatistics) -> float | None:
    return wait_s if wait_s >= _NAMED * steps.mean_s else None


CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.20,
    unit="% of the step; moderate from 5 %",
    source="XProf: input-bound above 20 %, moderately above 5 %",
    question=TreeQuestion(
        text="Is data loader time high?",
        metric="share of {the_step} spent waiting for data",
        measure=lambda recording: recording.shares.data_loader,
    ),
    phases=("data_wait_s", "loader_start_s"),
    share_field="data_loader",
    sentences={
        **TRACED_WORKERS,
        "waits": "{Each_step} waits for data {share:.0%} of its time.",
        "parts": "[{in_loader_s:seconds} in the DataLoader, ][{starting_workers_s:seconds} "
        "starting its workers, ][{in_loop_s:seconds} preparing batches in the loop, ]of {a_step} "
        "of {step_s:seconds} (means of the observed launch).",
    },
    examine=_examine,
    fires=[{"shares": {"data_loader": 0.4, "cpu": 0.6}}],
    quiet=[{"shares": {"data_loader": 0.01, "cpu": 0.99}}],
)
