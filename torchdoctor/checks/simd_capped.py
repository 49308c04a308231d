"""The CPU's vector instructions are held below what it has.

What it means
-------------
`ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA` tell torch and oneDNN to use older vector
instructions than the CPU has: meant for comparing results between machines, and easily left behind
in a job script. Operators then take two to four times as long.

How it is measured
------------------
The two variables in the program's environment, against the CPU's features.

Not to be confused with
-----------------------
A CPU without AVX2 or AVX-512: there is nothing to gain.
"""

from collections.abc import Iterator

from torchdoctor.facts.hardware import capped_simd
from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0


def _examine(recording: Recording) -> Iterator[Symptom]:
    if recording.has_gpu:
        return
    capped = capped_simd(recording)
    if not capped:
        return
    written = ", ".join(f"{name}={value}" for name, value in capped.items())
    yield Symptom(
        evidence=[f"The environment holds {written}, and the CPU has better instructions."],
        severity="high",
    )


_AVX512 = {"cpu_features": ["avx2", "avx512f"]}


def _flags(**environment: str) -> list[dict[str, object]]:
    return [{"pid": 1, "flags": {"environment": environment}}]


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="cpu",
    threshold=THRESHOLD,
    unit="variables that hold back the CPU's instructions: any is a finding",
    source="torchdoctor: torch uses the best instructions unless it is told",
    examine=_examine,
    fires=[
        {"environment": _AVX512, "processes": _flags(ATEN_CPU_CAPABILITY="default")},
        {"environment": _AVX512, "processes": _flags(ATEN_CPU_CAPABILITY="avx2")},
        {"environment": _AVX512, "processes": _flags(ONEDNN_MAX_CPU_ISA="SSE41")},
    ],
    quiet=[
        {"environment": _AVX512, "processes": _flags(ATEN_CPU_CAPABILITY="avx512")},
        {
            "environment": {"cpu_features": ["avx2"]},
            "processes": _flags(ATEN_CPU_CAPABILITY="avx2"),
        },
        {"processes": _flags(ATEN_CPU_CAPABILITY="default")},
    ],
)
