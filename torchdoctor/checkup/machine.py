"""What torchdoctor sees of this machine, and what that rules out (`torchdoctor env`)."""

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
        *(
            f"GPU          {gpu.name} ({_gib(gpu.memory_bytes)}, compute capability "
            f"{gpu.compute_capability or 'unknown'})"
            for gpu in machine.gpus
        ),
        *([] if machine.gpus else ["GPU          none"]),
        f"driver       {machine.driver or 'none'}",
    ]
    recording = Recording(workload=Workload(command=[], cwd=""), environment=machine)
    ruled_out = _ruled_out(recording) or ["nothing"]
    return [*lines, "", "Ruled out on this machine:", *(f"  {reason}" for reason in ruled_out)]


def _ruled_out(recording: Recording) -> list[str]:
    """Return what a build of torch, or fixes, refuse for a reason that lies in the machine."""
    machine = recording.environment
    if machine.gpus and (machine.torch or "").endswith("+cpu"):
        build = f"torch {machine.torch} is a CPU build"
        return [f"the GPU: {build}. Install a build for CUDA to train on it."]
    reasons = {ident: fix.refuses(recording) for ident, fix in catalogue.fixes().items()}
    return [
        f"{ident}: {reason}"
        for ident, reason in reasons.items()
        if reason and not machine.gpus and any(x in reason for x in ("GPU", "CUDA", "bf16"))
    ]


def _gib(value: int | None) -> str:
    return "none" if value is None else f"{value / 2**30:.1f} GiB"
