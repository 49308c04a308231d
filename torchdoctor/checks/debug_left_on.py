"""Debugging aids are on.

What it means
-------------
Anomaly detection checks every operator's gradient and keeps a stack for each; profilers record
every operator; CUDA_LAUNCH_BLOCKING waits for every kernel. None belongs into a long run.

How it is measured
------------------
torch's switches after the measured steps, and the environment.

Not to be confused with
-----------------------
Deterministic algorithms, which may be wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "cpu"
THRESHOLD = 0
THRESHOLD_UNIT = "debugging tools left on: any is a finding"
THRESHOLD_SOURCE = "PyTorch Performance Tuning Guide: disable debugging APIs"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.words import Finding

    flags = recording.main.flags
    evidence, location = [], None
    if flags.anomaly_enabled:
        evidence.append("torch.autograd's anomaly detection is on.")
        location = flags.anomaly_location
    if flags.profiler_on:
        evidence.append("A profiler of the program's own is running in the measured steps.")
        location = location or flags.profiler_location
    if flags.gradcheck_calls:
        evidence.append(f"gradcheck was called {flags.gradcheck_calls} times.")
    if flags.environment.get("CUDA_LAUNCH_BLOCKING") == "1" and recording.has_gpu:
        evidence.append("CUDA_LAUNCH_BLOCKING=1 is set.")
    if flags.environment.get("TORCH_DISTRIBUTED_DEBUG") in ("DETAIL", "INFO"):
        evidence.append("TORCH_DISTRIBUTED_DEBUG is set.")
    if not evidence:
        return []
    return [Finding(check="debug-left-on", evidence=evidence, location=location, severity="high")]


FIRES = [{"processes": [{"pid": 1, "flags": {"anomaly_enabled": True}}]}]
QUIET = [{"processes": [{"pid": 1, "flags": {"anomaly_enabled": False}}]}]
