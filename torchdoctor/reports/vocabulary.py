"""The words by which a report names what its figures are of: a step, the trace, the device."""

from torchdoctor.schema import Report
from torchdoctor.schema.units import several, unit_of

_ACCELERATORS = ("mtia", "hpu")  # whose makers do not call them GPUs
_WHOLE_TRACE = "the trace"
_STEP = {
    "each_step": "each {step}",
    "the_step": "the {step}",
    "profiled_step": "the profiled {step}",
    "a_step": "a {step}",
}


def step_of(report: Report) -> str:
    """Return what a step of the program is called."""
    return unit_of(report.kind, report.steps.boundary.kind if report.steps is not None else None)


def steps_of(report: Report) -> str:
    """Return what several steps of the program are called."""
    return several(step_of(report))


def compared(report: Report) -> str:
    """Return what is compared of a program: its training, or its outputs."""
    return "outputs" if report.kind == "inference" else "training"


def of_unit(unit: str) -> dict[str, str]:
    """Return the words for a step that is called so; `Each_step` begins a sentence."""
    return _with_beginnings(_of_step(unit))


def _of_step(unit: str) -> dict[str, str]:
    words = {name: text.format(step=unit) for name, text in _STEP.items()}
    return {**words, "unit": unit, "units": several(unit)}


def _with_beginnings(words: dict[str, str]) -> dict[str, str]:
    return {**words, **{name.capitalize(): _begun(text) for name, text in words.items()}}


def vocabulary(report: Report) -> dict[str, str]:
    """Return the words that templates may use; `Each_step` begins a sentence."""
    step = step_of(report)
    words = _of_step(step)
    words["first_step"] = f"the first {step if report.kind == 'inference' else 'training step'}"
    if report.diagnosis.verdict.rest is not None:
        words |= _of_all("the rest")
    elif report.steps is None and report.trace is not None and not report.trace.steps:
        words |= _of_all(_WHOLE_TRACE)
    of_trace = report.steps is None and report.trace is not None
    platform = report.trace.platform if of_trace and report.trace is not None else None
    trains = not of_trace or (report.trace is not None and report.trace.trains is True)
    words["device"] = "accelerator" if platform in _ACCELERATORS else "GPU"
    words["program"] = "training" if trains else "the program"
    if report.kind == "inference" and not of_trace:
        words["program"] = "the model"
    return _with_beginnings(words)


def of_verdict(report: Report) -> dict[str, str]:
    """Return the words for the verdict's own sentence, which names a start-up left out."""
    words = vocabulary(report)
    trace = report.trace
    is_whole_trace = words["the_step"] == _WHOLE_TRACE
    if not is_whole_trace or trace is None or not trace.start_up_s:
        return words
    return {**words, **_of_all(f"{_WHOLE_TRACE} after its start-up")}


def _of_all(name: str) -> dict[str, str]:
    return {**dict.fromkeys(_STEP, name), "a_step": f"in {name}"}


def _begun(text: str) -> str:
    return text[:1].upper() + text[1:]
