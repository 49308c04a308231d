"""The arguments of a library's Trainer, for programs whose loop it runs."""

from __future__ import annotations

from typing import Any

from torchdoctor.words import Recording

# By library, what sets its arguments; and by what is wanted, the argument and its value.
_CALLS = {
    "transformers": "TrainingArguments",
    "accelerate": "Accelerator",
    "lightning": "Trainer",
    "pytorch_lightning": "Trainer",
}
_BF16 = ("precision", '"bf16-mixed"')
_ARGUMENTS: dict[str, dict[str, tuple[str, str]]] = {
    "transformers": {
        "bfloat16": ("bf16", "True"),
        "fused": ("optim", '"adamw_torch_fused"'),
        "compile": ("torch_compile", "True"),
        "num_workers": ("dataloader_num_workers", "{}"),
        "prefetch_factor": ("dataloader_prefetch_factor", "{}"),
        "persistent_workers": ("dataloader_persistent_workers", "{}"),
        "pin_memory": ("dataloader_pin_memory", "{}"),
        "batch_size": ("per_device_train_batch_size", "{}"),
    },
    "accelerate": {"bfloat16": ("mixed_precision", '"bf16"')},
    "lightning": {"bfloat16": _BF16},
    "pytorch_lightning": {"bfloat16": _BF16},
}
_OPTIONS = {
    "transformers": "--{} {} with HfArgumentParser",
    "lightning": "--trainer.{} {} with LightningCLI",
    "pytorch_lightning": "--trainer.{} {} with LightningCLI",
}


def trainer_call(recording: Recording, wanted: dict[str, Any]) -> str | None:
    """Return "TrainingArguments(..., bf16=True)", and the command line's option that sets it.

    `wanted` are "bfloat16", "fused", "compile" or arguments of a DataLoader. None if the program's
    own code runs the loop, or its library knows no such argument.
    """
    library = next(
        (training_pass.library for training_pass in recording.main.passes if training_pass.library),
        None,
    )
    known = _ARGUMENTS.get(library or "", {})
    if library is None or not wanted or not set(wanted) <= set(known):
        return None
    pairs = [(known[key][0], known[key][1].format(value)) for key, value in wanted.items()]
    call = f"{_CALLS[library]}(..., {', '.join(f'{name}={value}' for name, value in pairs)})"
    option = _OPTIONS.get(library)
    if option is None:
        return call
    given = [option.format(name, value.strip('"')) for name, value in pairs]
    return "\n".join([call, *(f"# or {words}" for words in given)])
