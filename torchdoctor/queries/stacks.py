"""What frames and sampled stacks say of the user's own lines: who prepares, computes, or waits."""

import re
import sys
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

from torchdoctor.queries.lookup import training_loaders, training_models
from torchdoctor.schema import Evidence, Location, Recording, StackSample, fact

FRAME = re.compile(r"(?P<file>.+\.pyx?)\((?P<line>\d+)\): (?P<function>.+)")
_LIBRARIES = frozenset(
    (
        "torch",
        "torchvision",
        "torchaudio",
        "functorch",
        "triton",
        "torchmetrics",
        "numpy",
        "scipy",
        "pandas",
        "PIL",
        "cv2",
        "tqdm",
        "einops",
        "packaging",
        "IPython",
        "transformers",
        "accelerate",
        "tokenizers",
        "datasets",
        "safetensors",
        "ignite",
        "huggingface_hub",
        "lightning",
        "lightning_fabric",
        "pytorch_lightning",
        "timm",
    )
)
# Host work before a forward that prepares no batch: innermost frames by file or function.
_NO_PREPARATION = (
    "zero_grad",
    "lr_scheduler",
    "tqdm",
    "logging",
    "tensorboard",
    "wandb",
    "torchdoctor",
    "torch/serialization",
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
    "torch/_functorch/",
    "utils/_pytree.py",
    "nn/utils/stateless.py",
    "torch/autograd/forward_ad.py",
)
# An update of the weights that is written by hand, where no optimizer steps.
_UPDATE_LINE = re.compile(
    r"-=.*\*|\.(add|sub|addcmul|addcdiv|lerp)_\(|_foreach_|\blr\b|learning_rate|\bgrad|no_grad"
)
_COPY_LINE = re.compile(r"\.(to|cuda)\(")
_ASKS_FOR_BATCH = re.compile(r"^(async )?for\b|\bnext\(")  # library code ran below the line
# Between forward and backward the loss is computed, in operators that no frame of Python shows.
_LOSS = re.compile(r"loss|criterion|entropy|backward|\bmse\b")
# The main thread waits while other threads train: that is no work.
_JOINS = re.compile(r"(^|/)threading\.py (join|_join|_wait_for_tstate_lock)\b|_shutdown")
# Phases of the samples that fall into `StepStatistics.before_forward_s`, by the boundary: with a
# loader the gap begins at the end of a fetch, without one at the end of the step.
_BETWEEN = ("before_forward", "after_step", "after_backward")
_COMPUTING = ("forward", "backward", "optimizer")
_MAKES_MODELS = re.compile(
    r"nn/(init|parameter)\.py |nn/modules/|torch/(serialization|_weights_only_unpickler|_utils)\.py"
    r"|safetensors|transformers/(modeling_utils|core_model_loading|initialization)\.py"
)
_SEVERAL = 1.5  # backwards a step: gradient accumulation, whose batches follow a backward
_GAP_PHASES = {
    "loader": ("before_forward",),
    "backward": _BETWEEN,
    "forward": (*_BETWEEN, "other"),  # from one call of the model to the next
}
Role = Literal["prepares", "computes", "updates", "outside", "other"]
PREPARING_LINE = {  # the sentence of `preparing_line`
    "preparing-line": "{samples:.0%} of it was in {function}, most often at {location:place}"
    "[ ({text})]."
}
_FEWEST = 20  # samples of stacks in the loader
_MOST = 0.5  # of them, from where on their function is named


def is_users(name: str) -> bool:
    """Return True for a frame ("train.py(12): main") of neither Python nor a known library."""
    match = FRAME.fullmatch(name)
    if match is None or name.startswith("<"):
        return False
    path = match["file"].replace("\\", "/")
    if "site-packages/" in path or "dist-packages/" in path or "/lib/python3" in path:
        return False
    first = path.partition("/")[0].removesuffix(".py")
    return first not in _LIBRARIES and first not in sys.stdlib_module_names


@dataclass(frozen=True)
class Place:
    """Samples that were taken in the same function or at the same line."""

    rows: list[StackSample]  # the most frequent first

    @property
    def count(self) -> int:
        """How many samples were taken there."""
        return sum(row.count for row in self.rows)

    @property
    def top(self) -> StackSample:
        """The most frequent sample."""
        return self.rows[0]


def by_function(rows: Iterable[StackSample]) -> list[Place]:
    """Return the functions, the most frequent first."""
    return _ranked(rows, function_of)


def function_of(row: StackSample) -> tuple[str, str]:
    """Return file and name of the function that a sample lies in."""
    return row.location.file, row.location.function or ""


def by_line(rows: Iterable[StackSample]) -> list[Place]:
    """Return the lines, the most frequent first."""
    return _ranked(rows, lambda row: (row.location.file, row.location.line))


def _ranked(rows: Iterable[StackSample], key: Callable[[StackSample], Hashable]) -> list[Place]:
    groups: dict[Hashable, list[StackSample]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    places = [Place(sorted(group, key=lambda row: -row.count)) for group in groups.values()]
    return sorted(places, key=lambda place: -place.count)


def preparing_line(recording: Recording) -> Evidence | None:
    """Return the line that prepares samples; None: workers do, or there is no such line."""
    loaders = training_loaders(recording)
    rows = [row for row in recording.main.stacks if row.phase == "loader"]
    total = sum(row.count for row in rows)
    if not loaders or loaders[0].num_workers or total < _FEWEST:
        return None
    slowest = by_function(rows)[0]
    top = slowest.top
    share = slowest.count / total
    function = top.location.function
    if share < _MOST or function in (None, "<module>") or _ASKS_FOR_BATCH.search(top.text):
        return None
    return fact(
        "preparing-line",
        location=top.location,
        samples=share,
        function=function,
        text=top.text or None,
    )


def forward_line(recording: Recording) -> Location | None:
    """Return the user's line that half of the samples in forward passes lie in; None: no line."""
    return _main_line([row for row in recording.main.stacks if row.phase == "forward"])


def line_of_branch(recording: Recording, branch: str) -> Location | None:
    """Return the user's line that half of a branch's share of the step lies in; None: no line.

    Beside a GPU the host's samples hold its waits for room in the queue, which are no host's work.
    """
    if branch == "data_loader":
        rows = [stack for stack in recording.main.stacks if stack.phase == "loader"]
        rows += rows_showing(recording, "prepares")
    elif branch == "cpu" and not recording.has_gpu:
        rows = [stack for stack in recording.main.stacks if stack.phase in _COMPUTING]
        rows += rows_showing(recording, "computes")
    elif branch == "other":
        rows = rows_showing(recording, "outside", "updates")
    else:
        return None
    return _main_line(rows)


def _main_line(rows: list[StackSample]) -> Location | None:
    lines = by_line(rows)
    total = sum(row.count for row in rows)
    spread = total < _FEWEST or lines[0].count < _MOST * total
    return None if spread else lines[0].top.location


@dataclass(frozen=True, kw_only=True)
class InlinePreparation:
    """Share of the step spent preparing batches in the loop, and the most frequent sample."""

    share: float
    top: StackSample | None


def inline_preparation(recording: Recording) -> InlinePreparation | None:
    """Return the batch preparation outside any DataLoader; None: there is none, or not measured."""
    steps = recording.steps
    if steps is None or steps.mean_s <= 0 or steps.before_forward_s <= 0:
        return None
    gap = steps.before_forward_s / steps.mean_s
    total = sum(row.count for row in recording.main.stacks if row.phase in _gap_phases(recording))
    if total == 0:  # it is surely preparation only where no loader feeds what a model's call ends
        surely = training_models(recording) and not training_loaders(recording)
        return InlinePreparation(share=gap, top=None) if surely else None
    preparing = rows_showing(recording, "prepares")
    lines = by_line(preparing)
    share = gap * sum(row.count for row in preparing) / total
    return InlinePreparation(share=share, top=lines[0].top) if lines else None


def making_rows(recording: Recording) -> list[StackSample]:
    """Return the samples in what makes or loads a module, outside of all calls of models."""
    return [row for row in recording.main.stacks if _makes_model(row)]


def _makes_model(row: StackSample) -> bool:
    beside_calls = row.phase not in ("loader", *_COMPUTING)
    return beside_calls and _MAKES_MODELS.search(row.leaf) is not None


def _gap_phases(recording: Recording) -> tuple[str, ...]:
    if recording.steps is None:
        return ("before_forward", "after_step")
    kind = recording.steps.boundary.kind
    several = recording.steps.backwards_per_step > _SEVERAL
    return _GAP_PHASES.get(kind, _BETWEEN if several else ("before_forward", "after_step"))


def _learns_again(recording: Recording) -> bool:
    """Return True if several backward passes follow one batch: what is between them computes."""
    steps = recording.steps
    return steps is not None and steps.backwards_per_step > _SEVERAL * steps.batches_per_step


def rows_showing(recording: Recording, *roles: Role) -> list[StackSample]:
    """Return the samples of these roles; see `role`."""
    return [row for row in recording.main.stacks if role(recording, row) in roles]


def role(recording: Recording, row: StackSample) -> Role:
    """Return what a sample shows beside the calls of loaders, root modules and optimizers.

    "prepares": a batch, outside any DataLoader; "computes": a forward that no call of a root module
    shows, or its loss; "updates": weights, by hand; "outside": neither data loading nor the model.
    """
    between = row.phase in _BETWEEN
    loaders = training_loaders(recording)
    if _is_transform(recording, row):
        return "computes" if between else "other"
    # With a loader, what follows a step works on the step that was: a metric that autograd records
    # is no forward. And a model's forward may work on its input before autograd records it.
    past = bool(loaders) and row.phase != "before_forward" and not _learns_again(recording)
    forward = row.records_graph or row.location.function == "forward"
    # Between a module's call and the backward: mathematics of the program's own on its output.
    behind = row.phase == "other" and row.records_graph
    if behind or (between and forward and not past):
        return "computes"
    is_update = updates_by_hand(recording, row)
    # Where no loader tells, what stands behind the model's call works on the step that was.
    past = past or (row.behind_forward and row.phase in _gap_phases(recording))
    makes_model = recording.infers and _makes_model(row)
    gap = row.phase in _gap_phases(recording) and not past and not makes_model
    if gap and not is_update and _prepares(row, recording.has_gpu):
        return "prepares"
    if not between and (row.phase != "other" or _LOSS.search(row.text)):
        return "other"
    if _JOINS.search(row.leaf) or "zero_grad" in row.leaf or "zero_grad" in row.text:
        return "other"
    return "updates" if is_update else "outside"


def _prepares(row: StackSample, on_gpu: bool) -> bool:
    """Return True if a sample of the gap before a forward shows a batch being prepared."""
    if any(mark in row.leaf for mark in _NO_PREPARATION):
        return False
    if not row.in_own_line and not any(mark in row.leaf for mark in _WRAPPERS):
        return True
    # On a GPU such a line waits for a copy; without one it does nothing, and its other calls count.
    return not (_NO_PREPARATION_LINE.search(row.text) or (on_gpu and _COPY_LINE.search(row.text)))


def updates_by_hand(recording: Recording, row: StackSample) -> bool:
    """Return True if a sample shows an update by hand, behind the line of the gradients."""
    steps = recording.steps
    if row.phase != "after_backward" or steps is None or steps.optimizer_steps_per_step:
        return False
    call = _gradient_call(recording)
    at = row.location
    if call is not None and (at.file, at.function) == (call.file, call.function):
        return at.line >= call.line
    return bool(_UPDATE_LINE.search(row.text))


def _is_transform(recording: Recording, row: StackSample) -> bool:
    """Return True if a sample lies within torch.func, around the function it differentiates."""
    if any(mark in row.leaf for mark in _TRANSFORMS):
        return True
    steps = recording.steps
    call = _gradient_call(recording)
    if steps is None or steps.boundary.learned_by != "torch.func" or call is None:
        return False
    return (row.location.file, row.location.line) == (call.file, call.line)


def _gradient_call(recording: Recording) -> Location | None:
    """Return the line that most samples show computing gradients, or the first that did."""
    computing = [row for row in recording.main.stacks if row.phase == "backward"]
    if not computing:  # too short for a sample to fall into it
        return recording.main.flags.gradient_location
    return max(computing, key=lambda row: row.count).location


def share_showing(recording: Recording, role: Role) -> float:
    """Return the share of samples of a role; see `role`."""
    total = sum(row.count for row in recording.main.stacks)
    return sum(row.count for row in rows_showing(recording, role)) / total if total else 0.0
