"""Another memory allocator: one that caches, one for many threads, or segments that grow.

## What it does
On a CPU, preloads jemalloc or tcmalloc (`LD_PRELOAD`) if one is installed. On a GPU whose allocator
asks the driver for memory within the steps, sets `PYTORCH_CUDA_ALLOC_CONF=expandable_segments`. If
a trace shows that PyTorch's caching allocator is off, names the variable that turns it off.

## Why it helps
On the CPU the C library's `malloc` gives large blocks back to the kernel at once, and the next step
faults every page in again; jemalloc and tcmalloc keep them. On a GPU, blocks of varying sizes leave
holes; segments that grow fit them all.

## Risks
Resident memory can be larger, because freed memory is kept.

## Make it permanent
    LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2 python train.py
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py

## Sources
- PyTorch, PYTORCH_CUDA_ALLOC_CONF: https://docs.pytorch.org/docs/stable/notes/cuda.html
"""

import os
from pathlib import Path
from typing import Any

from torchdoctor.queries.touched import part
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, Touches, fact

_LIBRARIES = ("libjemalloc.so.2", "libtcmalloc.so.4", "libtcmalloc_minimal.so.4")
_FOLDERS = ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib", "local/lib")
_CUDA = "PYTORCH_CUDA_ALLOC_CONF"
_UNCACHED = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
_GROWING = "expandable_segments:True"
_PRELOADED = "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2 python train.py"


def refuses(recording: Recording) -> Evidence | None:
    if recording.has_gpu:
        if recording.accelerator not in (None, "cuda", "rocm"):
            return fact("for-cuda-and-rocm", setting=_CUDA, accelerator=recording.accelerator)
        if "expandable_segments" in _cuda_configuration(recording):
            return fact("segments-set-already", setting=_CUDA)
        trace = recording.trace
        if trace is None or (trace.allocations_per_step or 0.0) < 1.0:
            return fact("no-allocation-in-steps")
        return None
    preloaded = recording.main.flags.environment.get("LD_PRELOAD", "")
    if any(name in preloaded for name in ("jemalloc", "tcmalloc", "mimalloc")):
        return fact("allocator-preloaded")
    if not installed():
        return fact("no-allocator-installed")
    return None


def _cuda_configuration(recording: Recording) -> str:
    given = recording.main.flags.environment
    return given.get("PYTORCH_ALLOC_CONF") or given.get(_CUDA, "")


def installed() -> list[str]:
    """Return the paths of the allocators on this machine, the first to try at the head."""
    paths = [Path("/usr", folder, name) for name in _LIBRARIES for folder in _FOLDERS]
    by_name = {path.name: str(path) for path in reversed(paths) if path.exists()}
    return [by_name[name] for name in _LIBRARIES if name in by_name][:2]


def settings(recording: Recording) -> list[Settings]:
    given = recording.main.flags.environment
    if recording.has_gpu:
        name = "PYTORCH_ALLOC_CONF" if "PYTORCH_ALLOC_CONF" in given else _CUDA
        parts = [part for part in (_cuda_configuration(recording), _GROWING) if part]
        return [{name: ",".join(parts)}]
    before = [given["LD_PRELOAD"]] if given.get("LD_PRELOAD") else []
    return [{"LD_PRELOAD": ":".join([path, *before])} for path in installed()]


def touches(recording: Recording) -> Touches:
    if not recording.has_gpu:
        return None
    return part(recording, "allocation", "driver calls for memory", "runtime")


def apply(torch: Any, settings: Settings, program: Any) -> None:
    """Look whether they took effect: the environment was set before the program began."""
    for name, value in settings.items():
        if os.environ.get(name) != value:
            program.refuse("sets-it-itself", variable=name)
        library = Path(value.split(":")[0])
        maps = Path("/proc/self/maps")
        if name == "LD_PRELOAD" and library.resolve().name not in maps.read_text(errors="replace"):
            program.refuse("not-preloaded", library=library)
    program.applied()


def instruction(settings: Settings, recording: Recording) -> str:
    written = " ".join(f"{name}={value}" for name, value in settings.items())
    return f"{written} {' '.join(recording.workload.command)}"


def advice(recording: Recording) -> str:
    traced = recording.trace
    if traced is None or not traced.has_device:
        return _PRELOADED
    if traced.uncached_per_step:
        return f"unset {' '.join(_UNCACHED)}\n# then start the program as before"
    return f"{_CUDA}={_GROWING} python train.py"


FIX = FixSpec(
    name="another memory allocator",
    treats=("allocator-thrash", "cpu-execution"),
    keeps_results="exactly",
    p_helps=0.25,
    refuses=refuses,
    sentences={
        "for-cuda-and-rocm": "{setting} is for CUDA and ROCm, not for {accelerator}.",
        "segments-set-already": "{setting} says already whether segments grow.",
        "allocator-preloaded": "Another allocator is preloaded already.",
        "no-allocator-installed": "Neither jemalloc nor tcmalloc is installed here (apt-get "
        "install libjemalloc2, or google-perftools).",
        "no-allocation-in-steps": "The GPU's memory was not seen to be asked of the driver within "
        "the steps.",
        "sets-it-itself": "The program sets {variable} by itself.",
        "not-preloaded": "{library} could not be preloaded.",
    },
    settings=settings,
    environment=dict,
    touches=touches,
    suits=lambda trace: trace.has_device and (trace.allocations_per_step or 0.0) >= 1.0,
    apply=apply,
    advice=advice,
    instruction=instruction,
    example=Example(
        code="""
import os
torch.ones(1, requires_grad=True).sum().backward()
print(os.environ.get("PYTORCH_CUDA_ALLOC_CONF"))
""",
        settings={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        without="None",
        with_fix="expandable_segments:True",
    ),
)
