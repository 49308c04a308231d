"""Does the step wait for other devices?

## What it means
Devices exchange their gradients. The part of the exchange that the computation does not hide is
added to every step, on every device.

## What to do
Exchange less often: larger batches for each device, or gradient accumulation under `no_sync()`.
Exchange less: gradients in 16 bits (bf16_compress_hook of
`torch.distributed.algorithms.ddp_comm_hooks`). Hide more: DistributedDataParallel in place of one
all-reduce after the backward pass, with `find_unused_parameters=False`. Or take faster links: NCCL,
GPUs of one machine, NVLink. If one rank is late, see rank-imbalance first.

## How it is measured
The trace shows the exposed time of collective kernels (NCCL, RCCL, by kernel name) and operators.

## Not to be confused with
A straggler: a device that waits inside a collective for another that computes longer.
"""

from torchdoctor.queries.ranks import LINKS, WAITS_FOR_RANKS, links
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, TreeQuestion, fact

_MODERATE = 0.10


def _measure(recording: Recording) -> float | None:
    """Return the exposed share of the step, as all shares of it; None with one device."""
    share = recording.shares.communication
    several = any((process.world_size or 1) > 1 for process in recording.processes)
    return share if share or several else None


def _examine(recording: Recording) -> Symptoms:
    share = _measure(recording)
    if share is not None and share >= _MODERATE:
        yield Symptom(share=share, evidence=[fact("exposed", share=share), *links(recording)])


CHECK = CheckSpec(
    branch="communication",
    threshold=0.20,
    unit="% of the step, exposed; moderate from 10 %",
    source="torchdoctor: the same bound as for data; TensorBoard's plugin warns at 10 %",
    question=TreeQuestion(
        text="Is communication time high?",
        metric="exposed share of {the_step} spent communicating",
        measure=_measure,
        optional=True,
    ),
    share_field="communication",
    sentences={
        **LINKS,
        "exposed": "Exposed communication takes {share:.0%} of {each_step}.",
        WAITS_FOR_RANKS: "Of that rank {rank} waits for the others {share:.0%} of {each_step}, "
        "and communicates {exchange:.0%} of it.",
    },
    examine=_examine,
    fires=[{"shares": {"communication": 0.3, "gpu": 0.7}}],
    quiet=[{"shares": {"communication": 0.01, "gpu": 0.99}}],
)
