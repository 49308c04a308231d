"""The data loader's processors are the limit.

## What it means
Preparing a batch (decoding, augmenting, collating) needs more CPU time than the step leaves.

## How it is measured
Without workers, at least half of the time of a fetch is CPU time. With workers, the program's child
processes keep at least half of the CPUs busy that they could use. Both include the time in the
queue for a CPU that other programs held (`/proc/PID/schedstat`). If batches lie ready in the
workers' queue for most of the wait, the workers are not the limit: see batch-transfer.

## Not to be confused with
A loader that waits for a disk or a network: there more workers than cores help.
"""

from torchdoctor.queries.epoch_start import sample_wait_share
from torchdoctor.queries.loading import SAMPLE_TIME, queued_share, sample_time, waiting_loader
from torchdoctor.queries.lookup import loader_cpu_share
from torchdoctor.queries.stacks import PREPARING_LINE, preparing_line
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    loader = waiting_loader(recording)
    busy = loader_cpu_share(recording)
    if loader is None or busy is None or busy < CHECK.threshold:
        return
    evidence = [
        fact(
            "cpu-time",
            busy=busy,
            queued=queued_share(recording),
            workers=loader.num_workers,
            cpus=recording.environment.cpus,
        )
    ]
    if (line := preparing_line(recording)) is not None:
        evidence += [line, fact("cheaper-first")]
    evidence += sample_time(loader)
    share = sample_wait_share(recording)
    yield Symptom(share=share, evidence=evidence, location=loader.location)


_LOADER = {"ident": 0, "num_workers": 0, "batches": 50, "sample_cpu_share": 0.97}
_STEPS = {"data_wait_s": 0.008, "forward_s": 0.002}
CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.5,
    unit="% of the time of fetching is CPU time",
    source="torchdoctor: most of the fetch is CPU time; SageMaker asks CPU > 90 %",
    phases=("data_wait_s", "loader_start_s"),
    sentences={
        **PREPARING_LINE,
        **SAMPLE_TIME,
        "cpu-time": "Fetching a batch is {busy:.0%} CPU time[ (of which {queued:.0%} waiting for "
        "a CPU that others held)], with num_workers={workers} and {cpus:g} usable CPUs.",
        "cheaper-first": "Make this line cheaper first (whole-array NumPy operations, a decoder "
        "in C): workers only hide it.",
    },
    examine=_examine,
    fires=[{"steps": _STEPS, **process(loaders=[_LOADER])}],
    quiet=[{"steps": _STEPS, **process(loaders=[{**_LOADER, "sample_cpu_share": 0.1}])}],
)
