"""What the program trained with that its author sets: for telling two reports apart. Pure."""

from __future__ import annotations

from torchdoctor.facts.lookup import training_loaders, training_models
from torchdoctor.words.program import Flags, LoaderFacts, ModelFacts, OptimizerFacts
from torchdoctor.words.recording import Recording
from torchdoctor.words.report import Setting

_FLAGS = {
    "anomaly_enabled": "anomaly detection",
    "deterministic": "deterministic algorithms",
    "cudnn_benchmark": "cudnn.benchmark",
    "matmul_tf32": "TF32 in matrix products",
    "cudnn_tf32": "TF32 in cuDNN",
    "num_threads": "CPU threads",
    "grad_scaler": "gradient scaler",
}


def settings_of(recording: Recording) -> list[Setting]:
    """Of the training process: its main loader, the largest model, the optimizer, torch itself."""
    found: dict[str, object] = {}
    if loaders := training_loaders(recording):
        found |= _loader(loaders[0])
    if models := training_models(recording):
        found |= _model(max(models, key=lambda one: one.elements))
    stepped = [one for one in recording.main.optimizers if one.steps]
    if stepped:
        found |= _optimizer(max(stepped, key=lambda one: one.elements))
    found |= _flags(recording.main.flags)
    return [Setting(name=name, value=_said(one)) for name, one in found.items() if one is not None]


def _loader(one: LoaderFacts) -> dict[str, object]:
    return {
        "batch size": one.batch_size,
        "loader workers": one.num_workers,
        "prefetch_factor": one.prefetch_factor,
        "persistent_workers": one.persistent_workers,
        "pin_memory": one.pin_memory,
        "in_order": one.in_order,
        "data set": one.dataset_cls.rpartition(".")[2] or None,
        "samples in the data set": one.dataset_length,
    }


def _model(one: ModelFacts) -> dict[str, object]:
    return {
        "model": one.cls.rpartition(".")[2] or None,
        "weights": one.elements,
        "weights are": ", ".join(one.dtypes) or None,
        "device": one.device,
        "compiled": one.compiled,
        "autocast": one.autocast_forwards > 0,
        "convolutions channels-last": one.conv_channels_last if one.conv2d else None,
        "data parallel": one.data_parallel,
    }


def _optimizer(one: OptimizerFacts) -> dict[str, object]:
    return {
        "optimizer": one.cls.rpartition(".")[2] or None,
        "optimizer fused": bool(one.fused),
        "optimizer foreach": one.foreach,
    }


def _flags(flags: Flags) -> dict[str, object]:
    told: dict[str, object] = {name: getattr(flags, key) for key, name in _FLAGS.items()}
    return {**told, **{f"${name}": value for name, value in sorted(flags.environment.items())}}


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
