"""What torchdoctor sees of this machine, and what that rules out (`torchdoctor env`)."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from torchdoctor.advice import catalogue
from torchdoctor.launch.workload import Interpreter, choose_interpreter
from torchdoctor.machine.environment import accelerators, environment, named_gpus
from torchdoctor.reports import trial_facts
from torchdoctor.schema import Environment, Gpu, Recording, Workload
from torchdoctor.schema.errors import UsageError

FIGURES_AT = 13  # column
_OF_MACHINE = {  # refusals that lie in the machine
    "no-gpu",
    "no-cuda-gpu",
    "fewer-than-two-gpus",
    "no-gpu-tensors-by-gloo",
    "machine-without-gpu",
    "no-bfloat16-instructions",
}


@dataclass(frozen=True, kw_only=True)
class SeenEnvironment:
    """This machine, with the Python that would start a program here."""

    python: str
    python_from: str
    machine: Environment
    ruled_out: list[str]


def seen_environment() -> SeenEnvironment:
    """Return what a program that is started here has at its disposal."""
    try:
        chosen = choose_interpreter(None, str(Path.cwd()))
    except UsageError:  # none has torch
        chosen = Interpreter(path=sys.executable, named_by="torchdoctor's own environment")
    machine = environment(chosen.path)
    usable = accelerators(chosen.path) if machine.torch else []
    if not machine.gpus:  # NVIDIA's driver tells of NVIDIA's alone
        machine = replace(machine, gpus=named_gpus(usable))
    recording = Recording(workload=Workload(command=[], cwd=""), environment=machine)
    return SeenEnvironment(
        python=chosen.path,
        python_from=chosen.named_by,
        machine=machine,
        ruled_out=_ruled_out(recording, bool(usable)),
    )


def describe_environment(here: SeenEnvironment) -> list[str]:
    """Return what torchdoctor sees of this machine, and what that rules out; lines of text."""
    machine = here.machine
    limits = here.machine.container
    lines = [
        f"torch        {_build(machine, here.python)}",
        f"python       {machine.python}, {here.python} ({here.python_from})",
        f"platform     {machine.platform}",
        f"CPU          {machine.cpu}, {machine.cpu_cores} cores, {machine.cpus:g} usable",
        f"CPU features {', '.join(machine.cpu_features) or 'unknown'}",
        f"memory       {_gib(machine.memory_bytes)} (limit {_gib(limits.memory_bytes)})",
        *(f"GPU          {_described(gpu)}" for gpu in machine.gpus),
        *([] if machine.gpus else ["GPU          none"]),
        f"driver       {machine.driver or 'none'}",
    ]
    ruled_out = here.ruled_out or ["nothing"]
    return [*lines, "", "Ruled out on this machine:", *(f"  {reason}" for reason in ruled_out)]


def _described(gpu: Gpu) -> str:
    """Return a GPU's name; torch alone tells of no memory and no compute capability."""
    if gpu.memory_bytes is None:
        return gpu.name
    capability = gpu.compute_capability or "unknown"
    return f"{gpu.name} ({_gib(gpu.memory_bytes)}, compute capability {capability})"


def _build(machine: Environment, python: str) -> str:
    """Return torch's version, and what it was built for."""
    if machine.torch is None:
        return f"not installed in {python}"
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
    if machine.gpus:
        return []
    reasons = {ident: fix.refusal(recording) for ident, fix in catalogue.fixes().items()}
    return [
        f"{ident}: {trial_facts.refusal(why, ident)}"
        for ident, why in reasons.items()
        if why is not None and why.fact in _OF_MACHINE
    ]


def _gib(value: int | None) -> str:
    return "none" if value is None else f"{value / 2**30:.1f} GiB"
