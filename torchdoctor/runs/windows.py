"""How far the verdict of a trace may be trusted, by how much of the recording it rests on."""

from dataclasses import replace

from torchdoctor.schema import Diagnosis, TraceStatistics, Verdict, fact

_LITTLE = 0.05  # of what was recorded: the rest is start-up
_FEW_EVENTS = 1000  # operators, driver calls and device events
_REPEATED = 3  # marked steps: what repeats is no accident, however few events it has


def mostly_start_up(trace: TraceStatistics) -> bool:
    """Return True if next to nothing but the GPU's start-up was recorded."""
    return trace.kept_share < _LITTLE


def of_window(diagnosis: Diagnosis, trace: TraceStatistics) -> Diagnosis:
    """Return the diagnosis as firm as its window is: of a short one it is a hint, or nothing."""
    if mostly_start_up(trace):
        why = fact(
            "mostly-start-up",
            share=trace.kept_share,
            start_up_s=trace.start_up_s,
            whole_s=trace.start_up_s + trace.kept_s,
            kept_s=trace.kept_s,
        )
        return Diagnosis(
            bottleneck="none",
            verdict=Verdict(kind="start_up", why=why),
            path=[
                replace(question, answer="not measured", value=None) for question in diagnosis.path
            ],
        )
    few = trace.events is not None and trace.events < _FEW_EVENTS and trace.steps < _REPEATED
    if not few or trace.unusual or diagnosis.bottleneck == "none":
        return diagnosis
    return replace(diagnosis, verdict=replace(diagnosis.verdict, few_events=trace.events))
