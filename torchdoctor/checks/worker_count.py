"""More loader workers than usable CPUs, while the work is computing.

## What it means
Workers beyond the CPUs that may be used (affinity, quota) take time from each other and training.

## How it is measured
`num_workers` is compared with the usable CPUs, if the workers keep these CPUs busy.

## Not to be confused with
Many workers that wait for storage: they need no CPU.
"""

from torchdoctor.queries.lookup import training_loaders
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process

_BUSY = 0.7  # of the usable CPUs


def _examine(recording: Recording) -> Symptoms:
    usable = recording.environment.cpus
    loaders = training_loaders(recording)
    busy = recording.sensors.workers_cpus
    if not loaders or busy is None or busy < _BUSY * usable:
        return
    loader = loaders[0]
    if loader.num_workers > CHECK.threshold * usable:
        yield Symptom(
            evidence=fact("workers", workers=loader.num_workers, usable=usable, busy=busy),
            location=loader.location,
            severity="moderate",
        )


_WORKERS = {
    "environment": {"usable_cpus": 2.0},
    **process(loaders=[{"ident": 0, "num_workers": 16, "batches": 50}]),
}
CHECK = CheckSpec(
    branch="data_loader",
    threshold=1.0,
    unit="worker for each usable CPU; a finding above it",
    source="torch.utils.data warns above the CPUs that the process may use",
    phases=("data_wait_s", "loader_start_s"),
    sentences={
        "workers": "{workers} workers share {usable:g} usable CPUs and keep {busy:.1f} of them "
        "busy.",
    },
    examine=_examine,
    fires=[{**_WORKERS, "sensors": {"workers_cpus": 1.9}}],
    quiet=[{**_WORKERS, "sensors": {"workers_cpus": 0.2}}],
)
