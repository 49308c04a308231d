"""What samples of stacks say of the time between the model's passes: who prepares, who computes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from torchdoctor.facts.lookup import training_loaders, training_models
from torchdoctor.facts.samples import by_line
from torchdoctor.words.program import Location, StackSample
from torchdoctor.words.recording import Recording

# Host work before a forward that prepares no batch: innermost frames by file or function.
_NO_PREPARATION = (
    "zero_grad",
    "lr_scheduler",
    "tqdm",
    "logging",
    "tensorboard",
    "wandb",
    "torch/serialization",
    "torchdoctor",
    "clip_grad",
    "grad_scaler",
    "torch/optim/",
    "torch/nn/modules",
)
# Functions written in C have no frame of their own: there the user's line itself tells.
_NO_PREPARATION_LINE = re.compile(
    r"\.item\(|\.tolist\(|\.cpu\(|zero_grad|scheduler|\bprint\(|\blog\w*[.(]|add_scalar"
    r"|synchronize|clip_grad|\.grad\b|\.detach\(|torch\.save|empty_cache"
)
# What wraps a call has a frame of its own and says nothing: there too the user's line tells.
_WRAPPERS = ("torch/_dynamo/", "torch/_compile.py", "torch/_ops.py", "/typing.py", "/contextlib.py")
# What torch.func does around the function that it differentiates.
_TRANSFORMS = (
    *("torch/_functorch/", "utils/_pytree.py", "nn/utils/stateless.py"),
    "torch/autograd/forward_ad.py",
)
# An update of the weights that is written by hand, where no optimizer steps.
_UPDATE_LINE = re.compile(
    r"-=.*\*|\.(add|sub|addcmul|addcdiv|lerp)_\(|_foreach_|\blr\b|learning_rate|\bgrad|no_grad"
)
_COPY_LINE = re.compile(r"\.(to|cuda)\(")
# Phases of the samples that fall into `StepStatistics.before_forward_s`, by the boundary: with a
# loader the gap begins at the end of a fetch, without one at the end of the step.
_BETWEEN = ("before_forward", "after_step", "after_backward")
_SEVERAL = 1.5  # backwards a step: gradient accumulation, whose batches follow a backward
_GAP_PHASES = {
    "loader": ("before_forward",),
    "backward": ("before_forward", "after_step", "after_backward"),
}


@dataclass(frozen=True, kw_only=True)
class InlinePreparation:
    """Share of the step spent preparing batches in the loop, and the line most often seen."""

    share: float
    top: StackSample | None


def inline_preparation(recording: Recording) -> InlinePreparation | None:
    """Batch preparation outside any DataLoader; None where there is none or it was not measured."""
    steps = recording.steps
    if steps is None or steps.mean_s <= 0 or steps.before_forward_s <= 0:
        return None
    rows = [row for row in recording.main.stacks if row.phase in _gap_phases(recording)]
    total = sum(row.count for row in rows)
    preparing = preparing_rows(recording)
    counted = sum(row.count for row in preparing)
    if total == 0:
        # No stacks: only where no loader feeds the loop and a model's call ends the gap can it be
        # nothing else.
        if training_loaders(recording) or not training_models(recording):
            return None
        return InlinePreparation(share=steps.before_forward_s / steps.mean_s, top=None)
    share = steps.before_forward_s / steps.mean_s * counted / total
    lines = by_line(preparing)
    return InlinePreparation(share=share, top=lines[0].top) if lines else None


def preparing_rows(recording: Recording) -> list[StackSample]:
    """Samples that show a batch being prepared outside any DataLoader."""
    phases = _gap_phases(recording)
    if training_loaders(recording) and "before_forward" in phases:
        # What follows a step and comes before the next fetch works on the step that was.
        phases = ("before_forward",)
    rows = [row for row in recording.main.stacks if row.phase in phases]
    return [
        row
        for row in rows
        if not _in_forward(row)
        and not is_transform(recording, row)
        and not updates_by_hand(recording, row)
        and _prepares(row, recording.has_gpu)
    ]


def updates_by_hand(recording: Recording, row: StackSample) -> bool:
    """Whether a sample shows weights being updated, in a program that steps no optimizer.

    Nothing ends what follows the gradients, so the next batch's preparation is in the same phase:
    the update stands on or below the line that computes them, or looks like one.
    """
    steps = recording.steps
    if row.phase != "after_backward" or steps is None or steps.optimizer_steps_per_step:
        return False
    where = _gradient_call(recording)
    if where is not None and (row.location.file, row.location.function) == (
        where.file,
        where.function,
    ):
        return row.location.line >= where.line
    return bool(_UPDATE_LINE.search(row.text))


def computes_unseen(recording: Recording, row: StackSample) -> bool:
    """Whether a sample shows a forward that no call of a root module shows, or its loss.

    With a loader, what follows a step and comes before the next fetch works on the step that was:
    a metric that is recorded for autograd is no forward.
    """
    after = row.phase in ("after_step", "after_backward") and bool(training_loaders(recording))
    return row.phase in _BETWEEN and (
        is_transform(recording, row) or (_in_forward(row) and not after)
    )


def is_transform(recording: Recording, row: StackSample) -> bool:
    """Whether a sample lies within torch.func, about the function that it differentiates."""
    if any(mark in row.leaf for mark in _TRANSFORMS):
        return True
    steps, call = recording.steps, _gradient_call(recording)
    if steps is None or steps.boundary.learned_by != "torch.func" or call is None:
        return False
    return (row.location.file, row.location.line) == (call.file, call.line)


def _gradient_call(recording: Recording) -> Location | None:
    """The line that was most often seen to compute gradients, or the first that was."""
    computing = [row for row in recording.main.stacks if row.phase == "backward"]
    if not computing:  # too short for a sample to fall into it
        return recording.main.flags.gradient_location
    return max(computing, key=lambda row: row.count).location


def _in_forward(row: StackSample) -> bool:
    # A model's own forward may work on its input before a parameter makes autograd record it.
    return row.records_graph or row.location.function == "forward"


def unseen_forward_share(recording: Recording) -> float:
    """Share of the main thread's time in a forward or a loss outside any root module's call."""
    rows = recording.main.stacks
    total = sum(row.count for row in rows)
    unseen = sum(row.count for row in rows if computes_unseen(recording, row))
    return unseen / total if total else 0.0


def _gap_phases(recording: Recording) -> tuple[str, ...]:
    if recording.steps is None:
        return ("before_forward", "after_step")
    kind, several = recording.steps.boundary.kind, recording.steps.backwards_per_step > _SEVERAL
    return _GAP_PHASES.get(kind, _BETWEEN if several else ("before_forward", "after_step"))


def _prepares(row: StackSample, on_gpu: bool) -> bool:
    """Whether a sample of the gap before a forward shows a batch being prepared."""
    if any(mark in row.leaf for mark in _NO_PREPARATION):
        return False
    in_c = any(mark in row.leaf for mark in _WRAPPERS) or row.leaf.endswith(
        f"{Path(row.location.file).name} {row.location.function}"
    )
    if not in_c:
        return True
    # On a GPU such a line waits for a copy; without one it does nothing, and others on it count.
    return not (_NO_PREPARATION_LINE.search(row.text) or (on_gpu and _COPY_LINE.search(row.text)))
