"""Does the step wait for copies?

## What it means
While the device waits for a copy (batches, results), or one holds the host, nothing is computed.

## How it is measured
The profiler's trace gives the exposed time of memory copies, in which no kernel runs, and the
exposed time in which the host is blocked inside a copy call of the driver.

## What to do
Copy seldom, in large pieces, and read results on the host as late as you can.

## Not to be confused with
Copies that run beside kernels: they cost nothing.
"""

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, TreeQuestion, fact, trace

_MODERATE = 0.05


def _measure(recording: Recording) -> float | None:
    shares = recording.shares
    traced = recording.trace
    if shares.memcpy is None:
        return None
    blocked = 0.0
    if traced is not None and traced.blocking_copy_exposed_s is not None and traced.step_s:
        blocked = min(traced.blocking_copy_exposed_s / traced.step_s, shares.runtime or 0.0)
    return shares.memcpy + blocked


def _examine(recording: Recording) -> Symptoms:
    share = _measure(recording)
    traced = recording.trace
    if share is None or share < _MODERATE:
        return
    evidence = [fact("exposed", share=share)]
    if traced is not None and traced.blocking_copy_s and traced.step_s:
        to_host = (traced.d2h_wait_s or 0.0) > traced.blocking_copy_s / 2
        evidence.append(
            fact(
                "blocked-to-host" if to_host else "blocked",
                share=traced.blocking_copy_s / traced.step_s,
                idle=share - (recording.shares.memcpy or 0.0),
                range=traced.blocking_copy_range or None,
            )
        )
        if to_host:
            evidence.append(fact("waits-for-earlier"))
    yield Symptom(share=share, evidence=evidence)


_BLOCKED = (
    "block the host {share:.0%} of {each_step}, {idle:.0%} while the {device} does nothing"
    "[, most of it in {range}]."
)
CHECK = CheckSpec(
    branch="memcpy",
    threshold=0.20,
    unit="% of the step, exposed; moderate from 5 %",
    source="torchdoctor: the same bound as for data; XProf warns at 30 % of input time",
    question=TreeQuestion(
        text="Is memory copy time high?",
        metric="exposed share of {the_step} spent on copies, or blocked in them",
        measure=_measure,
        needs_gpu=True,
    ),
    share_field="memcpy",
    sentences={
        "exposed": "Copies, or the host blocked in them, take {share:.0%} of {each_step}, exposed.",
        "blocked": "Copies " + _BLOCKED,
        "blocked-to-host": "Copies to the host " + _BLOCKED,
        "waits-for-earlier": "They wait for all that was launched before, communication with "
        "other ranks included.",
    },
    examine=_examine,
    fires=[
        {"shares": {"memcpy": 0.3, "gpu": 0.5, "cpu": 0.2}},
        {
            "shares": {"memcpy": 0.03, "gpu": 0.32, "runtime": 0.52, "cpu": 0.11},
            **trace(blocking_copy_exposed_s=0.04),
        },
    ],
    quiet=[
        {"shares": {"memcpy": 0.01, "gpu": 0.99}},
        {"shares": {"cpu": 1.0}},
        # Blocked in copies for long, but kernels run meanwhile.
        {
            "shares": {"memcpy": 0.01, "gpu": 0.9, "runtime": 0.06},
            **trace(blocking_copy_s=0.05, blocking_copy_exposed_s=0.001),
        },
    ],
)
