"""Let operators use all vector instructions that the CPU has.

## What it does
Unsets `ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA` if they ask for less than the CPU has.

## Why it helps
AVX-512 computes sixteen numbers of 32 bits in one instruction, AVX2 eight, the default four.

## Risks
Sums are formed in another order, so results round differently. Whoever set the variable to get the
same bits on several machines wants to keep it.

## Make it permanent
    unset ATEN_CPU_CAPABILITY ONEDNN_MAX_CPU_ISA

## Sources
- PyTorch, torch.backends.cpu.get_cpu_capability: https://docs.pytorch.org/docs/stable/backends.html
"""

import os
from typing import Any

from torchdoctor.queries.hardware import capped_simd
from torchdoctor.queries.touched import operators_on_cpu
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, Touches, fact

_LANES = 8.0  # times: AVX-512 with fused products over SSE2


def refuses(recording: Recording) -> Evidence | None:
    if recording.has_gpu:
        return fact("model-on-gpu")
    if not capped_simd(recording):
        return fact("no-cap")
    return None


def touches(recording: Recording) -> Touches:
    tiles = any(feature.startswith("amx") for feature in recording.environment.cpu_features)
    return operators_on_cpu(recording, 0.0 if tiles else 1.0 / _LANES)


def apply(torch: Any, settings: Settings, program: Any) -> None:
    """Check that the variables are gone: the launch took them away before torch was imported."""
    if any(name in os.environ for name in settings["unset"]):
        program.refuse("sets-variable-itself")
    program.applied(capability=torch.backends.cpu.get_cpu_capability())


FIX = FixSpec(
    name="all vector instructions",
    treats=("simd-capped",),
    keeps_results="within rounding",
    p_helps=0.6,  # the cap is seen
    touches=touches,
    refuses=refuses,
    sentences={
        "model-on-gpu": "The model is on a GPU, where the CPU's vector instructions hardly matter.",
        "no-cap": "No variable holds the CPU's vector instructions down.",
        "sets-variable-itself": "The program sets the variable by itself.",
    },
    settings=lambda recording: [{"unset": sorted(capped_simd(recording))}],
    environment=lambda settings: dict.fromkeys(settings["unset"]),
    apply=apply,
    instruction=lambda settings, recording: f"unset {' '.join(settings['unset'])}",
    example=Example(
        code="""
torch.ones(1, requires_grad=True).sum().backward()
lowest = ("DEFAULT", "NO AVX")  # the second in torch 2.4 to 2.6
print("held down:", torch.backends.cpu.get_cpu_capability() in lowest)
""",
        settings={"unset": ["ATEN_CPU_CAPABILITY"]},
        environment={"ATEN_CPU_CAPABILITY": "default"},
        without="held down: True",
        with_fix="held down: False",
    ),
)
