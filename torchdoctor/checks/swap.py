"""The machine is swapping.

## What it means
Memory is full, and pages come back from disk: everything is slow, most of all the loader.

## What to do
Need less memory: fewer workers and batches ahead (num_workers, prefetch_factor), arrays and memory
maps in place of lists of objects, and smaller caches. Or end other programs that fill the machine.
With memory free again, swap empties by itself.

## How it is measured
psutil gives the swap in use while the program runs, and how long the CPUs wait for disks.

## Not to be confused with
Old pages that lie in swap and are not needed.
"""

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact

_LEAST_IOWAIT = 0.1


def _examine(recording: Recording) -> Symptoms:
    used = recording.sensors.swap_used_bytes or 0
    iowait = recording.sensors.iowait_share or 0.0
    if used >= CHECK.threshold and iowait >= _LEAST_IOWAIT:
        yield Symptom(
            evidence=fact("swapped", gib=used / 2**30, iowait=iowait),
            severity="high",
        )


CHECK = CheckSpec(
    branch="data_loader",
    threshold=256 * 2**20,
    unit="bytes in swap (256 MiB), while CPUs wait for disks 10 % of the time",
    source="torchdoctor: less may be old pages that nobody needs",
    sentences={
        "swapped": "{gib:.1f} GiB are in swap and the CPUs wait for disks {iowait:.0%} of the "
        "time.",
    },
    examine=_examine,
    fires=[{"sensors": {"swap_used_bytes": 2**31, "iowait_share": 0.4}}],
    quiet=[{"sensors": {"swap_used_bytes": 2**31, "iowait_share": 0.0}}, {}],
)
