"""What torchdoctor sees of this machine, and what that rules out (`torchdoctor env`)."""

import sys
from dataclasses import replace

from torchdoctor.advice import catalogue
from torchdoctor.machine.environment import accelerators, environment, named_gpus
from torchdoctor.words import Environment, Gpu, Recording, Workload

FIGURES_AT = 13  # column


def describe_environment() -> list[str]:
    """Return what torchdoctor sees of this machine, and what that rules out; lines of text."""
    machine = environment(None)
    limits, usable = machine.container, accelerators(sys.executable)
    if not machine.gpus:  # NVIDIA's driver tells of NVIDIA's alone
        machine = replace(machine, gpus=named_gpus(usable))
    lines = [
        f"torch        {_build(machine)}",
        f"python       {machine.python}",
        f"platform     {machine.platform}",
        f"CPU          {machine.cpu}, {machine.cpu_cores} cores, {machine.cpus:g} usable",
        f"CPU features {', '.join(machine.cpu_features) or 'unknown'}",
        f"memory       {_gib(machine.memory_bytes)} (limit {_gib(limits.memory_bytes)})",
        *(f"GPU          {_described(gpu)}" for gpu in machine.gpus),
        *([] if machine.gpus else ["GPU          none"]),
        f"driver       {machine.driver or 'none'}",
    ]
    recording = Recording(workload=Workload(command=[], cwd=""), environment=machine)
    ruled_out = _ruled_out(recording, bool(usable)) or ["nothing"]
    return [*lines, "", "Ruled out on this machine:", *(f"  {reason}" for reason in ruled_out)]


def _described(gpu: Gpu) -> str:
    """Return a GPU's name; torch alone tells of no memory and no compute capability."""
    if gpu.memory_bytes is None:
        return gpu.name
    capability = gpu.compute_capability or "unknown"
    return f"{gpu.name} ({_gib(gpu.memory_bytes)}, compute capability {capability})"


def _build(machine: Environment) -> str:
    """Return torch's version, and what it was built for."""
    if machine.torch is None:
        return f"not installed in {sys.executable}"
    return machine.torch + (f" (built for {machine.built_for})" if machine.built_for else "")


def _ruled_out(recording: Recording, usable: bool) -> list[str]:
    """Return what a build of torch, or fixes, refuse for a reason that lies in the machine."""
    machine = recording.environment
    if machine.gpus and not usable and machine.torch:
        if machine.built_for:
            return [
                f"the GPU: torch {machine.torch} does not see it. Compare its driver's version."
            ]
        build = f"torch {machine.torch} is a CPU build"
        return [f"the GPU: {build}. Install a build for CUDA to train on it."]
    reasons = {ident: fix.refusal(recording) for ident, fix in catalogue.fixes().items()}
    return [
        f"{ident}: {reason}"
        for ident, reason in reasons.items()
        if reason and not machine.gpus and any(x in reason for x in ("GPU", "CUDA", "bf16"))
    ]


def _gib(value: int | None) -> str:
    return "none" if value is None else f"{value / 2**30:.1f} GiB"
