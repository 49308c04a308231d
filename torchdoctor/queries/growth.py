"""What a step that grows comes to, and the line and the object that grow. Pure."""

import math

from torchdoctor.queries.lookup import training_loaders
from torchdoctor.queries.stacks import by_function
from torchdoctor.schema import GrownObject, Location, Recording, StackSample, StepGrowth

HOOKS = "hooks"  # the kind of `GrownObject` that counts them
_HOUR_S = 3600.0
_TIMED = ("loader", "forward", "backward", "optimizer")  # phases of samples that name themselves
_PHASES = {"data_wait": "loader", "h2d_copy": "before_forward"}
_LEAST_FIRST = 0.25  # of the first measured step, that the very first one takes at least
_SHARE = 0.25  # of the samples in the phase that grows, from where on a line stands for it


def times_after_an_hour(growth: StepGrowth) -> float:
    """Return how many times as long a step takes after another hour of this growth.

    A step of t seconds adds `slope_s` to the next: t grows with the root of the time.
    """
    last = max(growth.last_s, 1e-9)
    return math.sqrt(last**2 + 2.0 * growth.slope_s * _HOUR_S) / last


def times_at_end(recording: Recording, growth: StepGrowth) -> tuple[float | None, int | None]:
    """Return how many times as long an epoch's last step takes as its first, and its steps.

    None: how many steps an epoch has is not known, or the measured ones were of several epochs.
    """
    steps = growth.anew_every or _epoch_steps(recording)
    observed = recording.steps
    if steps is None or observed is None:
        return None, None
    before = 0 if growth.anew_every is not None else observed.warmup_steps
    if growth.anew_every is None and observed.total_steps_seen >= steps:
        return None, None
    # A line through the first steps may begin below what the rest of the step takes.
    first_s = max(growth.first_s - growth.slope_s * before, _LEAST_FIRST * growth.first_s)
    return (first_s + growth.slope_s * steps) / first_s, steps


def _epoch_steps(recording: Recording) -> int | None:
    """Return the batches of an epoch of the training loader; None: they are not known."""
    loaders = training_loaders(recording)
    steps = recording.steps
    if not loaders or steps is None or steps.boundary.kind != "loader":
        return None
    length = loaders[0].dataset_length
    size = loaders[0].batch_size
    return math.ceil(length / size) if length and size else None


def growing_line(recording: Recording) -> Location | None:
    """Return the line that most samples of the phase that grows show, by its function."""
    steps = recording.steps
    if steps is None or steps.growth is None:
        return None
    phase = steps.growth.phase
    rows = [stack for stack in recording.main.stacks if _in_phase(stack, _PHASES.get(phase, phase))]
    total = sum(row.count for row in rows)
    for place in by_function(rows):
        if place.count >= _SHARE * total:
            return place.top.location
    return None


def _in_phase(row: StackSample, phase: str) -> bool:
    return row.phase == phase if phase in _TIMED else row.phase not in _TIMED


def grown_objects(recording: Recording) -> list[GrownObject]:
    """Return what was larger at each look: hooks, which never should be, then the fastest first."""
    grown = recording.main.grown_objects
    return sorted(grown, key=lambda each: (each.kind != HOOKS, -each.per_step))
