"""What fixes and checks ask of a `Recording`, answered in one place. Pure."""

from __future__ import annotations

from pathlib import Path

from torchdoctor.records.program import LoaderFacts, Location, ModelFacts
from torchdoctor.records.recording import Recording

_BF16_FEATURES = ("amx_bf16", "avx512_bf16", "bf16")  # x86, x86, Arm


def training_loaders(recording: Recording) -> list[LoaderFacts]:
    """The loaders that feed the training loop, the main one first; empty where there is none.

    A loader that is constructed anew each epoch shows as several, all made at the same place.
    """
    loaders = recording.main.loaders
    steps = recording.steps
    if steps is not None and steps.boundary.kind == "loader":
        main = next((x for x in loaders if x.ident == steps.boundary.ident), None)
    else:
        used = [x for x in loaders if x.batches > 0]
        main = max(used, key=lambda x: x.batches) if used else None
    if main is None:
        return []
    return [main] + [
        x
        for x in loaders
        if x.ident != main.ident and x.location is not None and x.location == main.location
    ]


def loader_target(recording: Recording) -> dict[str, int]:
    """The part of a fix's settings that names the loader: {} stands for every loader."""
    training = training_loaders(recording)
    if len(training) == 1 and len(recording.main.loaders) > 1:
        return {"loader": training[0].ident}
    return {}


def training_models(recording: Recording) -> list[ModelFacts]:
    """Root modules that were called in training mode."""
    return [m for m in recording.main.models if m.forwards > m.eval_forwards]


def data_wait_share(recording: Recording) -> float | None:
    """Share of the step spent waiting for the loader, its start included; None: not measured."""
    steps = recording.steps
    if steps is None or steps.mean_s <= 0:
        return None
    return steps.data_wait_s / steps.mean_s


def compute_capability(recording: Recording) -> tuple[int, int] | None:
    """The lowest compute capability among the machine's GPUs; None: not known."""
    found = []
    for gpu in recording.environment.gpus:
        major, _, minor = (gpu.compute_capability or "").partition(".")
        if major.isdigit():
            found.append((int(major), int(minor) if minor.isdigit() else 0))
    return min(found) if found else None


def has_bf16_instructions(recording: Recording) -> bool | None:
    """Whether the CPU computes in bfloat16; None where its features are not known."""
    features = recording.environment.cpu_features
    return any(name in features for name in _BF16_FEATURES) if features else None


def place(recording: Recording, location: Location | None, otherwise: str) -> str:
    """ "train.py:42", relative to the program's folder where it lies below; or `otherwise`."""
    if location is None:
        return otherwise
    path = Path(location.file)
    try:
        path = path.relative_to(recording.workload.cwd)
    except ValueError:
        pass
    return f"{path}:{location.line}"
