"""Collect the settings that a program trained with, to tell two reports apart. Pure."""

from torchdoctor.queries.lookup import training_loaders, training_models
from torchdoctor.schema import LoaderFacts, ModelFacts, Recording, Setting

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
    """Return those of the main loader, the largest model, the optimizer and torch itself."""
    values: dict[str, object] = {}
    if loaders := training_loaders(recording):
        values |= _loader(loaders[0])
    if models := training_models(recording):
        values |= _model(max(models, key=lambda model: model.elements))
    stepped = [optimizer for optimizer in recording.main.optimizers if optimizer.steps]
    if stepped:
        optimizer = max(stepped, key=lambda optimizer: optimizer.elements)
        values["optimizer"] = optimizer.cls.rpartition(".")[2] or None
        values |= {"optimizer fused": bool(optimizer.fused), "optimizer foreach": optimizer.foreach}
    flags = recording.main.flags
    values |= {name: getattr(flags, key) for key, name in _FLAGS.items()}
    values |= {f"${name}": value for name, value in sorted(flags.environment.items())}
    return [
        Setting(name=name, value=_text(value))
        for name, value in values.items()
        if value is not None
    ]


def _loader(loader: LoaderFacts) -> dict[str, object]:
    return {
        "batch size": loader.batch_size,
        "loader workers": loader.num_workers,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
        "pin_memory": loader.pin_memory,
        "in_order": loader.in_order,
        "data set": loader.dataset_cls.rpartition(".")[2] or None,
        "samples in the data set": loader.dataset_length,
    }


def _model(model: ModelFacts) -> dict[str, object]:
    return {
        "model": model.cls.rpartition(".")[2] or None,
        "weights": model.elements,
        "weights are": ", ".join(model.dtypes) or None,
        "device": model.device,
        "compiled": model.compiled,
        "autocast": model.autocast_forwards > 0,
        "convolutions channels-last": model.conv_channels_last if model.conv2d else None,
        "data parallel": model.data_parallel,
    }


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
