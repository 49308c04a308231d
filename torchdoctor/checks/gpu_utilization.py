"""Is the GPU busy?

## What it means
If it is, the GPU is the limit: faster kernels, lower precision or a faster GPU help. If not, it
waits for the host.

## How it is measured
The profiler's trace gives the share of the step in which at least one kernel runs. If there is no
trace, the utilization that NVML reports counts.

## Not to be confused with
nvidia-smi's utilization: time in which any kernel ran, however little of the GPU it used.
"""

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, TreeQuestion, fact

_HARDLY = 0.005  # of the step, which would be shown as none of it


def _examine(recording: Recording) -> Symptoms:
    share = recording.shares.gpu
    if share is None or share >= CHECK.threshold:
        return
    also = (getattr(recording.shares, branch) for branch in ("communication", "memcpy", "memset"))
    idle = max(1.0 - share - sum(filter(None, also)), 0.0)
    computes = "computes" if share >= _HARDLY else "computes-hardly"
    evidence = [fact(computes, share=idle, busy=share)]
    if (utilization := recording.sensors.gpu_utilization) is not None:
        evidence.append(fact("reported", utilization=utilization))
    yield Symptom(share=idle, evidence=evidence, severity="moderate")


CHECK = CheckSpec(
    branch="gpu",
    threshold=0.50,
    unit="% of the step in which kernels run; a finding below it",
    source="TensorBoard profiler plugin: low below 50 %",
    question=TreeQuestion(
        text="Is GPU utilization high?",
        metric="share of {the_step} in which kernels run",
        measure=lambda recording: recording.shares.gpu,
        needs_gpu=True,
    ),
    share_prefix="GPU idle ",
    sentences={
        "computes": "The {device} computes only {busy:.0%} of {each_step}, and idles {share:.0%} "
        "of it.",
        "computes-hardly": "The {device} computes less than 1% of {each_step}, and idles "
        "{share:.0%} of it.",
        "reported": "NVML reports {utilization:.0%} utilization on average.",
    },
    examine=_examine,
    fires=[{"shares": {"gpu": 0.2, "cpu": 0.8}}],
    quiet=[{"shares": {"gpu": 0.9, "cpu": 0.1}}, {"shares": {"cpu": 1.0}}],
)
