"""The GPU runs below its clock.

## What it means
Heat or the power limit makes the GPU lower its clock for a good part of the run. A GPU that is
fully used touches its power limit now and then, which is normal and no finding.

## What to do
Act on the reason that is named. Heat: see to cooling, fans and neighbours of the GPU. A power limit
below the GPU's own: have it raised (`nvidia-smi -q -d POWER` shows both limits). A brake from
outside (HW power brake): check the power supply. Lower precision and fewer kernels need less power.

## How it is measured
NVML reports the reasons for throttling while the program runs.

## Not to be confused with
An idle GPU, which lowers its clock by itself.
"""

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact


def _examine(recording: Recording) -> Symptoms:
    often = [
        throttle for throttle in recording.sensors.gpu_throttle if throttle.share >= CHECK.threshold
    ]
    if often:
        named = [{"reason": throttle.reason, "of_time": throttle.share} for throttle in often]
        yield Symptom(evidence=fact("throttled", reasons=named), severity="moderate")


CHECK = CheckSpec(
    branch="other",
    threshold=0.2,
    unit="% of the samples",
    source="torchdoctor: rarer ones cost little",
    sentences={
        "throttled": "NVML reports throttling: {reasons:each reason}.",
        "reason": "{reason} {of_time:percent} of the time",
    },
    examine=_examine,
    fires=[{"sensors": {"gpu_throttle": [{"reason": "thermal (driver)", "share": 0.4}]}}],
    quiet=[
        {"sensors": {"gpu_throttle": []}},
        {"sensors": {"gpu_throttle": [{"reason": "power cap", "share": 0.04}]}},
        {},
    ],
)
