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

from torchdoctor.facts.loading import workers_told
from torchdoctor.facts.lookup import training_loader_location
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, TreeQuestion

_MODERATE = 0.05
_NAMED = 0.01  # share of the step from which a part of the wait is named


def _examine(recording: Recording) -> Symptoms:
    share, steps = recording.shares.data_loader, recording.steps
    if share is None or share < _MODERATE:
        return
    evidence = [f"Each step waits for data {share:.0%} of its time."]
    if steps is not None and steps.data_wait_s >= _NAMED * steps.mean_s:
        in_loop_s = share * steps.mean_s - steps.data_wait_s - steps.loader_start_s
        waits = {
            "in the DataLoader": steps.data_wait_s,
            "starting its workers": steps.loader_start_s,
            "preparing batches in the loop": in_loop_s,
        }
        least_s = _NAMED * steps.mean_s
        parts = [f"{1e3 * s:.1f} ms {place}" for place, s in waits.items() if s >= least_s]
        evidence.append(
            f"{', '.join(parts)}, of a {steps.mean_s * 1e3:.1f} ms step (means of the observed "
            "launch)."
        )
    evidence += filter(None, [workers_told(recording)])
    yield Symptom(share=share, evidence=evidence, location=training_loader_location(recording))


CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.20,
    unit="% of the step; moderate from 5 %",
    source="XProf: input-bound above 20 %, moderately above 5 %",
    question=TreeQuestion(
        text="Is data loader time high?",
        metric="share of the step spent waiting for data",
        measure=lambda recording: recording.shares.data_loader,
    ),
    phases=("data_wait_s", "loader_start_s"),
    share_field="data_loader",
    examine=_examine,
    fires=[{"shares": {"data_loader": 0.4, "cpu": 0.6}}],
    quiet=[{"shares": {"data_loader": 0.01, "cpu": 0.99}}],
)
