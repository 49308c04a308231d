"""nn.DataParallel is in use.

## What it means
DataParallel copies the model to every GPU in every step and runs them from one Python process;
DistributedDataParallel does neither.

## How it is measured
The probe finds a module of that class among the root modules.

## Not to be confused with
DistributedDataParallel.
"""

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    wrapped = [model for model in recording.main.models if model.data_parallel == "DataParallel"]
    if wrapped:
        yield Symptom(
            evidence=fact("wrapped"),
            location=wrapped[0].location,
            severity="high",
        )


CHECK = CheckSpec(
    branch="communication",
    threshold=0,
    unit="models in DataParallel: any is a finding",
    source="PyTorch documentation (DataParallel): use DistributedDataParallel instead",
    sentences={
        "wrapped": "The model is wrapped in torch.nn.DataParallel: one process drives all "
        "{device}s.",
    },
    examine=_examine,
    fires=[process(models=[{"ident": 0, "data_parallel": "DataParallel"}])],
    quiet=[process(models=[{"ident": 0, "data_parallel": "DistributedDataParallel"}])],
)
