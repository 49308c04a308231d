"""What torchdoctor sees of this machine, and what that rules out (`torchdoctor env`)."""

from __future__ import annotations

import sys

from torchdoctor.advice import catalogue
from torchdoctor.machine.environment import environment
from torchdoctor.words import Recording, Workload

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
        f"GPU          {', '.join(gpu.name for gpu in machine.gpus) or 'none'}",
        f"driver       {machine.driver or 'none'}",
    ]
    ruled_out = _ruled_out(Recording(workload=_NO_WORKLOAD, environment=machine))
    return [*lines, "", "Ruled out on this machine:", *(ruled_out or ["  nothing"])]


_NO_WORKLOAD = Workload(command=[], cwd="")


def _ruled_out(recording: Recording) -> list[str]:
    """Return one line for each fix whose reason to refuse lies in the machine alone."""
    if recording.environment.gpus:
        return []
    lines = []
    for ident, module in catalogue.fixes().items():
        reason = module.refuses(recording)
        if reason and ("GPU" in reason or "CUDA" in reason or "bf16" in reason):
            lines.append(f"  {ident}: {reason}")
    return lines


def _gib(value: int | None) -> str:
    return "none" if value is None else f"{value / 2**30:.1f} GiB"
