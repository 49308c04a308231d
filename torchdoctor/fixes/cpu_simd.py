"""Let operators use all vector instructions that the CPU has.

What it does
------------
Takes `ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA` out of the launch's environment, where they ask
for less than the CPU has.

Why it helps
------------
AVX-512 computes sixteen numbers of 32 bits in one instruction, AVX2 eight, and the default code
path four or fewer. Without the variables torch and oneDNN choose the best by themselves.

Risks
-----
Sums are formed in another order, so results round differently. Whoever set the variable to get the
same bits on several machines wants to keep it.

Make it permanent
-----------------
    unset ATEN_CPU_CAPABILITY ONEDNN_MAX_CPU_ISA

Sources
-------
- PyTorch documentation, torch.backends.cpu.get_cpu_capability:
  https://docs.pytorch.org/docs/stable/backends.html
- oneDNN documentation, CPU Dispatcher Control:
  https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.words import Recording

TREATS = ("simd-capped",)
KEEPS_RESULTS = "within rounding"
WHEN = "launch"


def refuses(recording: Recording) -> str | None:
    """Why there is nothing to lift."""
    from torchdoctor.facts.hardware import capped_simd

    if recording.has_gpu:
        return "The model trains on a GPU, where the CPU's vector instructions hardly matter."
    if not capped_simd(recording):
        return "No variable holds the CPU's vector instructions down."
    return None


def settings(recording: Recording) -> list[dict[str, Any]]:
    """The variables that ask for too little."""
    from torchdoctor.facts.hardware import capped_simd

    return [{"unset": sorted(capped_simd(recording))}]


def environment(settings: dict[str, Any]) -> dict[str, str | None]:
    """The launch's environment without them."""
    return dict.fromkeys(settings["unset"])


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Nothing is left to do but to look: they were gone before torch was imported."""
    if any(name in os.environ for name in settings["unset"]):
        program.refuse("The program sets the variable by itself.")
    program.applied(capability=torch.backends.cpu.get_cpu_capability())


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """What to take out of the environment."""
    return f"unset {' '.join(settings['unset'])}"


EXAMPLE = """
import torch

torch.ones(1, requires_grad=True).sum().backward()
print("held down:", torch.backends.cpu.get_cpu_capability() == "DEFAULT")
"""
EXAMPLE_ENVIRONMENT = {"ATEN_CPU_CAPABILITY": "default"}
EXAMPLE_SETTINGS: dict[str, Any] = {"unset": ["ATEN_CPU_CAPABILITY"]}
EXAMPLE_WITHOUT = "held down: True"
EXAMPLE_WITH = "held down: False"
