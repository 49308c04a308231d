"""How far the verdict of a trace may be trusted, by how much of the recording it rests on."""

from dataclasses import replace

from torchdoctor.words import Diagnosis, TraceStatistics
from torchdoctor.words.figures import percent, seconds

_LITTLE = 0.05  # of what was recorded: the rest is start-up
_FEW_EVENTS = 1000  # operators, driver calls and device events
_REPEATED = 3  # marked steps: what repeats is no accident, however few events it has


def mostly_start_up(trace: TraceStatistics) -> bool:
    """Return True if next to nothing but the GPU's start-up was recorded."""
    return trace.kept_share < _LITTLE


def of_window(diagnosis: Diagnosis, trace: TraceStatistics) -> Diagnosis:
    """Return the diagnosis as firm as its window is: of a short one it is a hint, or nothing."""
    if mostly_start_up(trace):
        whole_s = trace.start_up_s + trace.kept_s
        return Diagnosis(
            bottleneck="none",
            sentence=f"Almost nothing can be told: {seconds(trace.start_up_s)} of the "
            f"{seconds(whole_s)} recorded are the GPU's start-up, and what follows is "
            f"{seconds(trace.kept_s)} ({percent(trace.kept_share)}). Record more steps, "
            "after some of warm-up.",
            path=[replace(x, answer="not measured", value=None) for x in diagnosis.path],
        )
    few = trace.events is not None and trace.events < _FEW_EVENTS and trace.steps < _REPEATED
    if not few or trace.unusual or diagnosis.bottleneck == "none":
        return diagnosis
    hint = f"Only {trace.events} events were recorded, so what follows is a hint and no verdict."
    return replace(diagnosis, sentence=f"{hint} {diagnosis.sentence}")
