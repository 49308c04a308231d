"""Turn off what was left on from debugging.

## What it does
Keeps autograd's anomaly detection off, skips `gradcheck`, keeps the program's own `torch.profiler`
from recording, and takes `CUDA_LAUNCH_BLOCKING` and `TORCH_DISTRIBUTED_DEBUG` out of the
environment: whichever of them was on.

## Why it helps
Anomaly detection records a stack trace for every operator and checks every gradient for NaN.
`gradcheck` computes the whole Jacobian by finite differences. A profiler keeps every operator in
memory. With `CUDA_LAUNCH_BLOCKING=1` the program waits for each kernel.

## Risks
A NaN in a gradient is not reported where it arises, only in the loss. Code that reads the
profiler's results finds none in the trial.

## Make it permanent
    torch.autograd.set_detect_anomaly(False)   # remove the call, or guard it by a --debug option
    unset CUDA_LAUNCH_BLOCKING TORCH_DISTRIBUTED_DEBUG

## Sources
- PyTorch Tuning Guide: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

import os
from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.calls import call_edits
from torchdoctor.queries.lookup import place
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, fact

_HARMLESS = ("", "0", "OFF", "off")
_CONTEXTS = ("profile", "emit_nvtx", "emit_itt")
_VARIABLES = ("CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG")


def refuses(recording: Recording) -> Evidence | None:
    if _left_on(recording):
        return None
    return fact("nothing-left-on")


def _left_on(recording: Recording) -> list[str]:
    flags = recording.main.flags
    switches = {
        "anomaly": flags.anomaly_enabled,
        "gradcheck": flags.gradcheck_calls,
        "profiler": flags.profiler_on,
    }
    names = _VARIABLES if recording.has_gpu else _VARIABLES[1:]
    variables = {name: flags.environment.get(name, "") not in _HARMLESS for name in names}
    return [name for name, is_on in (switches | variables).items() if is_on]


def apply(torch: Any, settings: Settings, program: Any) -> None:
    program.set_reason("nothing-turned-on")
    turned_off = settings["off"]
    if "anomaly" in turned_off:
        _anomaly_off(torch, program)
    if "gradcheck" in turned_off:
        skipped = _instead(program, True, gradcheck="skipped")
        for name in ("gradcheck", "gradgradcheck"):
            program.replace(torch.autograd, name, skipped)
    if "profiler" in turned_off:
        _profiler_off(torch, program)
    for name in _VARIABLES:
        if name in turned_off:
            _variable_off(torch, program, name)


def _instead(program: Any, value: Any, **note: str) -> Any:
    """Return what makes a function that does nothing but return a value."""

    def make(old: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            program.applied(**note)
            return value

        return call

    return make


def _anomaly_off(torch: Any, program: Any) -> None:
    def make(old: Any) -> Any:
        def set_anomaly_enabled(enabled: bool, check_nan: bool = True) -> None:
            if enabled:
                program.applied(anomaly="off")
            old(False, check_nan)

        return set_anomaly_enabled

    # detect_anomaly and set_detect_anomaly both end here.
    program.replace(torch, "set_anomaly_enabled", make)


def _profiler_off(torch: Any, program: Any) -> None:
    def make(old: Any) -> Any:
        def entered(self: Any) -> Any:
            if self.enabled:
                program.applied(profiler="off")
            self.enabled = False  # its __exit__ then does nothing
            return self

        return entered

    nothing = _instead(program, None, profiler="off")
    for name in ("start", "stop", "step"):
        program.replace(torch.profiler.profile, name, nothing)
    for context in _CONTEXTS:
        program.replace(getattr(torch.autograd.profiler, context), "__enter__", make)


def _variable_off(torch: Any, program: Any, name: str) -> None:
    if os.environ.pop(name, None) is None:
        return
    # torch.distributed read its variable when it was imported, before us.
    if name == "TORCH_DISTRIBUTED_DEBUG" and torch.distributed.is_available():
        torch.distributed.set_debug_level(torch.distributed.DebugLevel.OFF)
    program.applied(**{name: "removed"})


def instruction(settings: Settings, recording: Recording) -> str:
    flags = recording.main.flags
    anomaly = place(recording, flags.anomaly_location, "where it is turned on")
    profiler = place(recording, flags.profiler_location, "where it is made")
    lines = {
        "anomaly": f"{anomaly}  remove the anomaly detection",
        "profiler": f"{profiler}  remove the profiler, or give it a schedule that ends",
        "gradcheck": "move torch.autograd.gradcheck(...) out of the training into a test",
    }
    return "\n".join(lines.get(name, f"unset {name}") for name in settings["off"])


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    """Return set_detect_anomaly(False) as a source edit; the rest is left to the instruction."""
    if settings["off"] != ["anomaly"]:
        return []  # half of what was measured is no patch for it
    location = recording.main.flags.anomaly_location
    return call_edits(recording, location, "set_detect_anomaly", {"mode": False})


FIX = FixSpec(
    name="debugging aids off",
    treats=("debug-left-on",),
    keeps_results="exactly",
    p_helps=0.7,  # the switch is seen on
    no_bound="Such an aid makes all of a step longer, and how much was not recorded.",
    refuses=refuses,
    sentences={
        "nothing-left-on": "Nothing was left on: no anomaly detection, gradcheck, profiler or "
        "blocking launches.",
        "nothing-turned-on": "Nothing of it was turned on.",
    },
    settings=lambda recording: [{"off": _left_on(recording)}],
    apply=apply,
    location=lambda recording: (
        recording.main.flags.anomaly_location or recording.main.flags.profiler_location
    ),
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
from torch.autograd import gradcheck
torch.autograd.set_detect_anomaly(True)
model = torch.nn.Linear(4, 1)
calls = []
def f(x):
    calls.append(1)
    return x * 2
gradcheck(f, torch.ones(2, dtype=torch.float64, requires_grad=True))
profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
profiler.start()
with torch.autograd.detect_anomaly(check_nan=False):
    model(torch.ones(2, 4)).sum().backward()
    inside = torch.is_anomaly_enabled()
recording = torch._C._autograd._profiler_enabled()
profiler.stop()
print("anomaly:", torch.is_anomaly_enabled(), inside)
print("gradcheck ran:", bool(calls), "profiling:", recording)
""",
        settings={"off": ["anomaly", "gradcheck", "profiler"]},
        without="anomaly: True True\ngradcheck ran: True profiling: True",
        with_fix="anomaly: False False\ngradcheck ran: False profiling: False",
    ),
)
