"""What fixes and checks ask of the machine, its other load and the links between GPUs. Pure."""

from collections.abc import Sequence

from torchdoctor.schema import Recording, SensorStatistics

NEARLY_FULL = 0.9  # share of the GPU's memory
# Of the usable CPUs, held by other programs: a machine is busy then, wherever that is asked.
MUCH_LOAD = 0.25
_BF16_FEATURES = ("amx_bf16", "avx512_bf16", "bf16")  # x86, x86, Arm
_THROUGH_HOST = ("gloo", "mpi")
# Values of these variables, the oldest first, with the CPU features that make each a loss.
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
    """Return the lowest compute capability among the program's GPUs; None: not known."""
    capabilities = []
    for gpu in recording.environment.used_gpus:
        major, _, minor = (gpu.compute_capability or "").partition(".")
        if major.isdigit():
            capabilities.append((int(major), int(minor) if minor.isdigit() else 0))
    return min(capabilities, default=None)


def has_bf16_instructions(recording: Recording) -> bool | None:
    """Return True if the CPU computes in bfloat16; None where its features are not known."""
    features = recording.environment.cpu_features
    return any(name in features for name in _BF16_FEATURES) if features else None


def low_precision(recording: Recording) -> str | None:
    """Return "bfloat16" (also if unknown) or "float16", multiplied fast here; None: neither."""
    if not recording.has_gpu:
        return None if has_bf16_instructions(recording) is False else "bfloat16"
    capability = compute_capability(recording)
    if capability is None or capability >= (8, 0):
        return "bfloat16"
    return "float16" if capability >= (7, 0) else None


def capped_simd(recording: Recording) -> dict[str, str]:
    """Return the variables that hold vector instructions below those of the CPU, with values."""
    features = recording.environment.cpu_features
    given = recording.main.flags.environment
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


def much_load(busy: float | None, usable: float | None) -> float | None:
    """Return the CPUs of the `usable` that other programs kept `busy`; None: few, or not known."""
    if busy is None or usable is None or busy < MUCH_LOAD * max(usable, 1.0):
        return None
    return busy


def load_words(busy: float | None, usable: float | None) -> str | None:
    """Return such as "1.2 of 2 usable CPUs"; None where that was little."""
    load = much_load(busy, usable)
    return None if load is None else f"{load:.1f} of {usable:g} usable CPUs"


def load_of(launches: Sequence[SensorStatistics], usable: float | None) -> str | None:
    """Return the most that other programs took of any launch, in the words of `load_words`."""
    loads = [sensors.other_load_cpus for sensors in launches]
    return load_words(max((load for load in loads if load is not None), default=None), usable)


def backend_by_host(recording: Recording) -> str | None:
    """Return the backend by which GPUs exchange gradients through host memory; None: none does.

    A model on a GPU must be wrapped to exchange any, where the program itself was observed; the
    wrapper's own group says how, and where that is not known the default one. "cpu:gloo,cuda:nccl"
    sends tensors of GPUs by NCCL; "cuda:gloo" does not.
    """
    trace = recording.trace
    models = [
        model
        for process in recording.processes
        for model in process.models
        if model.device.startswith("cuda")
        and model.data_parallel in ("DistributedDataParallel", "FSDP")
    ]
    worlds = [process.world_size or 1 for process in recording.processes]
    worlds.append((trace.world_size if trace is not None else None) or 1)
    if not recording.has_gpu or max(worlds) < 2 or (recording.processes and not models):
        return None
    traced = ((trace.backend if trace is not None else None) or "").lower()
    if "nccl" in traced:
        return None
    backend = (recording.main.backend or traced).lower()
    kinds = dict(part.split(":", 1) for part in backend.split(",") if ":" in part)
    used = kinds.get("cuda", "" if kinds else backend)
    return used if used in _THROUGH_HOST else None
