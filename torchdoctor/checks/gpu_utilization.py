"""Is the GPU busy?

What it means
-------------
A high share of kernels means that the GPU itself is the limit: faster kernels, lower precision
or a faster GPU help. A low one means that it waits for the host.

How it is measured
------------------
Share of the step in which at least one kernel runs, from the profiler's trace; where there is
no trace, the utilization that NVML reports.

Not to be confused with
-----------------------
The utilization that nvidia-smi shows: time in which any kernel ran, however small a part of
the GPU it used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "gpu"
QUESTION = "Is GPU utilization high?"
METRIC = "share of the step in which kernels run"
THRESHOLD = 0.50
THRESHOLD_UNIT = "% of the step in which kernels run; a finding below it"
THRESHOLD_SOURCE = "TensorBoard profiler plugin: low below 50 %"


def measure(recording: Recording) -> float | None:
    """Share of the step, 0 to 1; None without a GPU."""
    if recording.shares.gpu is None and recording.has_gpu:
        return recording.sensors.gpu_utilization
    return recording.shares.gpu


def look(recording: Recording) -> list[Finding]:
    """A finding where the GPU mostly waits."""
    from torchdoctor.words import Finding

    share = measure(recording)
    if share is None or share >= THRESHOLD:
        return []
    computes = f"only {share:.0%}" if share >= 0.005 else "less than 1%"
    evidence = [f"The GPU computes {computes} of each step and waits the rest."]
    sensors = recording.sensors
    if sensors.gpu_utilization is not None:
        evidence.append(f"NVML reports {sensors.gpu_utilization:.0%} utilization on average.")
    return [
        Finding(
            check="gpu-utilization",
            share_of_step=1.0 - share,
            evidence=evidence,
            severity="moderate",
        )
    ]


FIRES = [{"shares": {"gpu": 0.2, "cpu": 0.8}}]
QUIET = [{"shares": {"gpu": 0.9, "cpu": 0.1}}, {"shares": {"cpu": 1.0}}]
