"""The data loader waits for storage or a network.

## What it means
Fetching a batch takes long, but hardly any CPU: the time goes into waiting for a disk, a
network file system, an object store or a service.

## How it is measured
Without workers, less than half of the time of a fetch is CPU time. With workers, each keeps less
than half a CPU busy while the step still waits. Time in the queue for a CPU that other programs
hold counts as CPU time; if it is not known on a busy machine, the report holds a doubt instead of a
finding. Without workers, stacks name the line. If batches lie ready, see batch-transfer.

## Not to be confused with
A loader that computes: there the number of cores limits how many workers help.
"""

from torchdoctor.queries.epoch_start import sample_wait_share
from torchdoctor.queries.loading import SAMPLE_TIME, sample_time, untold_wait, waiting_loader
from torchdoctor.queries.lookup import loader_cpu_share
from torchdoctor.queries.slow_reads import HARDLY_READ, read_mounts_of
from torchdoctor.queries.stacks import PREPARING_LINE, preparing_line
from torchdoctor.schema import SLOW_KINDS, CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    loader = waiting_loader(recording)
    busy = loader_cpu_share(recording)
    if loader is None or busy is None or busy >= CHECK.threshold:
        return
    if untold_wait(recording) is not None:  # the report's doubts say it
        return
    reads = recording.sensors.read_bytes_per_s
    # Reads of network file systems go by no disk.
    slow = any(mount.kind in SLOW_KINDS for mount in read_mounts_of(recording))
    unread = reads is not None and reads < HARDLY_READ and not slow
    waits = fact("waits-unread" if unread else "waits", busy=busy)
    evidence = [waits, *sample_time(loader)]
    if (line := preparing_line(recording)) is not None:
        evidence.append(line)
    if reads is not None:
        evidence.append(fact("hardly-reads" if unread else "reads", mb_per_s=reads / 1e6))
    yield Symptom(share=sample_wait_share(recording), evidence=evidence, location=loader.location)


_LOADER = {"ident": 0, "num_workers": 0, "batches": 50, "sample_cpu_share": 0.08}
_STEPS = {"data_wait_s": 0.008, "forward_s": 0.002}
CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.5,
    unit="% of the time of fetching is CPU time; a finding below it",
    source="torchdoctor: most of the fetch is no CPU time; SageMaker asks iowait > 50 %",
    phases=("data_wait_s", "loader_start_s"),
    sentences={
        **PREPARING_LINE,
        **SAMPLE_TIME,
        "waits": "Fetching a batch is only {busy:.0%} CPU time: the loader waits for storage, a "
        "network or a lock.",
        "waits-unread": "Fetching a batch is only {busy:.0%} CPU time: the loader waits for "
        "another process or a sleep, a network or a lock.",
        "reads": "It reads {mb_per_s:.1f} MB/s from disk.",
        "hardly-reads": "It reads {mb_per_s:.1f} MB/s from disk, hardly anything.",
    },
    examine=_examine,
    fires=[{"steps": _STEPS, **process(loaders=[_LOADER])}],
    quiet=[{"steps": _STEPS, **process(loaders=[{**_LOADER, "sample_cpu_share": 0.95}])}],
)
