"""The CPU's vector instructions are held below what it has.

## What it means
`ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA` tell torch and oneDNN to use older vector
instructions than the CPU has: meant for comparing results between machines, and easily left behind
in a job script. Operators then take two to four times as long.

## How it is measured
The two variables in the program's environment are compared with the CPU's features.

## Not to be confused with
A CPU without AVX2 or AVX-512: there is nothing to gain.
"""

from torchdoctor.queries.hardware import capped_simd
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    capped = capped_simd(recording)
    if capped and not recording.has_gpu:
        variables = [f"{name}={value}" for name, value in capped.items()]
        yield Symptom(evidence=fact("capped", variables=variables), severity="high")


_CAPPED = process(flags={"environment": {"ATEN_CPU_CAPABILITY": "avx2"}})
CHECK = CheckSpec(
    branch="cpu",
    threshold=0,
    unit="variables that hold back the CPU's instructions: any is a finding",
    source="torchdoctor: torch uses the best instructions unless it is told",
    sentences={
        "capped": "The environment holds {variables:list}, and the CPU has better instructions.",
    },
    examine=_examine,
    fires=[{"environment": {"cpu_features": ["avx2", "avx512f"]}, **_CAPPED}],
    quiet=[{"environment": {"cpu_features": ["avx2"]}, **_CAPPED}],
)
