"""What torchdoctor sees of this machine, and what that rules out (`torchdoctor env`)."""

from __future__ import annotations

import sys

from torchdoctor.advice import catalogue
from torchdoctor.machine.environment import environment
from torchdoctor.words import Gpu, Recording, Workload

FIGURES_AT = 13  # column


def describe_environment() -> list[str]:
    """Return what torchdoctor sees of this machine, and what that rules out; lines of text."""
    machine = environment(None)
    limits = machine.container
    lines = [
        f"torch        {machine.torch or 'not installed in ' + sys.executable}",
        f"python       {machine.python}",
        f"platform     {machine.platform}",
        f"CPU          {machine.cpu}, {machine.cpu_cores} cores, {machine.cpus:g} usable",
        f"CPU features {', '.join(machine.cpu_features) or 'unknown'}",
        f"memory       {_gib(machine.memory_bytes)} (limit {_gib(limits.memory_bytes)})",
        *(f"GPU          {_described(gpu)}" for gpu in machine.gpus),
        *([] if machine.gpus else ["GPU          none"]),
        f"driver       {machine.driver or 'none'}",
    ]
    ruled_out = _ruled_out(Recording(workload=_NO_WORKLOAD, environment=machine))
    return [*lines, "", "Ruled out on this machine:", *(ruled_out or ["  nothing"])]


_NO_WORKLOAD = Workload(command=[], cwd="")


def _described(gpu: Gpu) -> str:
    """Return a GPU's name, memory and compute capability, as far as the driver tells them."""
    figures = [_gib(gpu.memory_bytes)] if gpu.memory_bytes is not None else []
    if gpu.compute_capability is not None:
        figures.append(f"compute capability {gpu.compute_capability}")
    return f"{gpu.name} ({', '.join(figures)})" if figures else gpu.name


def _ruled_out(recording: Recording) -> list[str]:
    """Return one line for each fix whose reason to refuse lies in the machine alone."""
    machine = recording.environment
    if machine.gpus:
        if not (machine.torch or "").endswith("+cpu"):
            return []
        return [
            f"  the GPU: torch {machine.torch} is a CPU build. Install a build for CUDA to train "
            "on it."
        ]
    lines = []
    for ident, module in catalogue.fixes().items():
        reason = module.refuses(recording)
        if reason and ("GPU" in reason or "CUDA" in reason or "bf16" in reason):
            lines.append(f"  {ident}: {reason}")
    return lines


def _gib(value: int | None) -> str:
    return "none" if value is None else f"{value / 2**30:.1f} GiB"
