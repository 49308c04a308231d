"""Does the step wait for copies?

What it means
-------------
Batches travel from host to device memory, results back. While the device waits for a copy, or
the host is held by one, nothing is computed.

How it is measured
------------------
From the profiler's trace: exposed time of memory copies (no kernel runs meanwhile), plus the
exposed time in which the host is blocked inside a copy call of the driver.

Not to be confused with
-----------------------
Copies that run beside kernels: they cost nothing.
"""

from collections.abc import Iterator

from torchdoctor.words import CheckSpec, Recording, Symptom, TreeQuestion

THRESHOLD = 0.20
MODERATE = 0.05


def _measure(recording: Recording) -> float | None:
    shares, trace = recording.shares, recording.trace
    if shares.memcpy is None:
        return None
    blocked = 0.0
    if trace is not None and trace.blocking_copy_exposed_s is not None and trace.step_s:
        blocked = trace.blocking_copy_exposed_s / trace.step_s
    return shares.memcpy + blocked


def _examine(recording: Recording) -> Iterator[Symptom]:
    share = _measure(recording)
    if share is None or share < MODERATE:
        return
    evidence = [f"Copies, or the host blocked in them, take {share:.0%} of each step, exposed."]
    trace = recording.trace
    if trace is not None and trace.blocking_copy_s:
        evidence.append(
            f"The host is blocked {trace.blocking_copy_s * 1e3:.1f} ms a step in copies."
        )
        if (trace.d2h_wait_s or 0.0) > trace.blocking_copy_s / 2:
            evidence.append(
                f"{(trace.d2h_wait_s or 0.0) * 1e3:.1f} ms of that are copies to the host, which "
                "wait until all is done that was launched before: what they wait for is not the "
                "copy."
            )
    yield Symptom(share=share, evidence=evidence)


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="memcpy",
    threshold=THRESHOLD,
    unit="% of the step, exposed; moderate from 5 %",
    source="torchdoctor: the same bound as for data; XProf warns at 30 % of input time",
    question=TreeQuestion(
        text="Is memory copy time high?",
        metric="exposed share of the step spent on copies, or blocked in them",
        measure=_measure,
        needs_gpu=True,
    ),
    share_field="memcpy",
    examine=_examine,
    fires=[
        {"shares": {"memcpy": 0.3, "gpu": 0.5, "cpu": 0.2}},
        {
            "shares": {"memcpy": 0.03, "gpu": 0.32, "runtime": 0.52, "cpu": 0.11},
            "trace": {"path": "t", "steps": 2, "step_s": 0.245, "blocking_copy_exposed_s": 0.09},
        },
    ],
    quiet=[
        {"shares": {"memcpy": 0.01, "gpu": 0.99}},
        {"shares": {"cpu": 1.0}},
        # Blocked in copies for long, but kernels run meanwhile.
        {
            "shares": {"memcpy": 0.01, "gpu": 0.9, "runtime": 0.06},
            "trace": {
                "path": "t",
                "steps": 2,
                "step_s": 0.1,
                "blocking_copy_s": 0.05,
                "blocking_copy_exposed_s": 0.001,
            },
        },
    ],
)
