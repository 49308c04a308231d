"""Debugging aids are on.

## What it means
Anomaly detection checks every operator's gradient and keeps a stack for each; profilers record
every operator; CUDA_LAUNCH_BLOCKING waits for every kernel. None belongs into a long run.

## How it is measured
The probe reads torch's switches after the measured steps, and the environment.

## Not to be confused with
Deterministic algorithms, which may be wanted.
"""

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    flags = recording.main.flags
    evidence = []
    location = None
    if flags.anomaly_enabled:
        evidence.append(fact("anomaly-detection"))
        location = flags.anomaly_location
    if flags.profiler_on:
        evidence.append(fact("own-profiler"))
        location = location or flags.profiler_location
    if flags.gradcheck_calls:
        evidence.append(fact("gradcheck", calls=flags.gradcheck_calls))
    if flags.environment.get("CUDA_LAUNCH_BLOCKING") == "1" and recording.has_gpu:
        evidence.append(fact("launch-blocking"))
    if flags.environment.get("TORCH_DISTRIBUTED_DEBUG") in ("DETAIL", "INFO"):
        evidence.append(fact("distributed-debug"))
    if evidence:
        yield Symptom(evidence=evidence, location=location, severity="high")


CHECK = CheckSpec(
    branch="cpu",
    threshold=0,
    unit="debugging tools left on: any is a finding",
    source="PyTorch Performance Tuning Guide: disable debugging APIs",
    sentences={
        "anomaly-detection": "torch.autograd's anomaly detection is on.",
        "own-profiler": "A profiler of the program's own is running in the measured steps.",
        "gradcheck": "gradcheck was called {calls:counted time}.",
        "launch-blocking": "CUDA_LAUNCH_BLOCKING=1 is set.",
        "distributed-debug": "TORCH_DISTRIBUTED_DEBUG is set.",
    },
    examine=_examine,
    fires=[process(flags={"anomaly_enabled": True})],
    quiet=[process(flags={"anomaly_enabled": False})],
)
