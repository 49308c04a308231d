"""What fixes and checks ask of the machine in a `Recording`. Pure."""

from __future__ import annotations

from torchdoctor.words.recording import Recording

NEARLY_FULL = 0.9  # share of the GPU's memory
_BF16_FEATURES = ("amx_bf16", "avx512_bf16", "bf16")  # x86, x86, Arm
# What these variables may ask for, the oldest first, by the CPU feature that makes it a loss.
_SIMD = {
    "ATEN_CPU_CAPABILITY": {"default": ("avx2", "avx512f"), "avx2": ("avx512f",)},
    "ONEDNN_MAX_CPU_ISA": {
        "sse41": ("avx2", "avx512f"),
        "avx": ("avx2", "avx512f"),
        "avx2": ("avx512f",),
        "avx2_vnni": ("avx512f",),
        "avx512_core": ("amx_bf16",),
    },
}


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


def low_precision(recording: Recording) -> str | None:
    """ "bfloat16" or "float16": what the program's hardware multiplies fast; None: neither.

    A GPU or processor that is not known counts as one with bfloat16.
    """
    if not recording.has_gpu:
        return None if has_bf16_instructions(recording) is False else "bfloat16"
    capability = compute_capability(recording)
    if capability is None or capability >= (8, 0):
        return "bfloat16"
    return "float16" if capability >= (7, 0) else None


def capped_simd(recording: Recording) -> dict[str, str]:
    """Variables that hold vector instructions below what the CPU has, with their values."""
    features, given = recording.environment.cpu_features, recording.main.flags.environment
    return {
        name: given[name]
        for name, levels in _SIMD.items()
        if any(feature in features for feature in levels.get(given.get(name, "").lower(), ()))
    }


def gpu_memory_share(recording: Recording) -> float | None:
    """Return the peak share of the first GPU's memory in use; None: not measured."""
    total = sum(gpu.memory_bytes or 0 for gpu in recording.environment.gpus[:1])
    peak = recording.sensors.gpu_memory_peak_bytes
    return None if not total or peak is None else peak / total


def memory_is_short(recording: Recording) -> bool:
    """Return True if the GPU's memory is nearly full, so that no larger batch fits."""
    return (gpu_memory_share(recording) or 0.0) >= NEARLY_FULL
