"""Source edits that make a fix permanent: asked for by fixes, made with LibCST, shown as a diff.

A fix names what to change (`edits(settings, recording)`); `torchdoctor.edits.diff` makes the
unified diff. An edit that cannot be made with certainty is not made: the instruction stands then.

May import: words, facts.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A change of one file."""

    file: str


@dataclass(frozen=True, kw_only=True)
class LineEdit(Edit):
    """A change at one line (1-based)."""

    line: int


@dataclass(frozen=True, kw_only=True)
class KeywordEdit(LineEdit):
    """Set one argument of a call.

    `line` is any line that the call covers; `callee` the last part of its name; `value` Python
    source; `position` where it stands if given by position; `command` and `script` how the program
    started. `needs`: a number of the same call without which this argument is an error. What comes
    from an option of the command line or from a constant is changed there, at its default.
    """

    callee: str
    keyword: str
    value: str
    position: int | None = None
    needs: str | None = None
    command: tuple[str, ...] = ()
    script: str | None = None


@dataclass(frozen=True, kw_only=True)
class DropKeywordEdit(LineEdit):
    """Take one argument away from a call, where it is given.

    Not where it is computed from `unless` (`persistent_workers=args.workers > 0`), nor with
    `only_literal` where the program decides the value.
    """

    callee: str
    keyword: str
    position: int | None = None
    unless: str | None = None
    only_literal: bool = False


@dataclass(frozen=True, kw_only=True)
class StatementEdit(Edit):
    """Insert a statement after a module's imports, or change the only one that sets the same."""

    statement: str


@dataclass(frozen=True, kw_only=True)
class DecoratorEdit(LineEdit):
    """Decorate the innermost function that covers `line`, unless it trains."""

    decorator: str


@dataclass(frozen=True, kw_only=True)
class WithEdit(LineEdit):
    """Put statements under a context manager.

    From the statement at `line`, which calls `callee` (`model`, `self.net`, or a function's name),
    up to the last one that the statement at `before` needs, in the innermost block that holds both.
    "{device}" in `context` becomes the program's own name for the device's type, or `device`.
    """

    callee: str
    before: int
    context: str
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class BeforeLoopEdit(LineEdit):
    """Insert a statement before the outermost loop around `line` that does not assign `name`.

    Without a loop in that function: before the statement itself, unless `needs_loop`.
    """

    statement: str
    name: str  # what the statement is about
    needs_loop: bool = True


@dataclass(frozen=True, kw_only=True)
class ScaledStepEdit(LineEdit):
    """`loss.backward()` at `line` and the optimizer's step after it go through `scaler`.

    `scaler` is no name of the module's. What lies between the two sees unscaled gradients.
    """

    scaler: str


@dataclass(frozen=True, kw_only=True)
class InputEdit(LineEdit):
    """Chain a method to the first argument of the call of `callee` at `line`."""

    callee: str
    method: str  # ".to(memory_format=torch.channels_last)"


@dataclass(frozen=True, kw_only=True)
class AsTensorEdit(LineEdit):
    """`torch.tensor(array)` -> `torch.as_tensor(array)`; `joined`: of a list of arrays."""

    joined: bool


@dataclass(frozen=True, kw_only=True)
class OnDeviceEdit(LineEdit):
    """`torch.zeros(...).to(device)` -> `torch.zeros(..., device=device)` at `line`."""

    maker: str  # "zeros"


@dataclass(frozen=True, kw_only=True)
class DetachEdit(LineEdit):
    """What the statement at `line` adds or appends to `name`, without its graph.

    Not where a backward goes through `name`. With `from_item`: `total += loss.item()` becomes
    `total += loss.detach()`, where nothing in that function needs a Python number of it.
    """

    name: str
    from_item: bool = False


@dataclass(frozen=True, kw_only=True)
class NonBlockingEdit(LineEdit):
    """`x.to(device)` -> `x.to(device, non_blocking=True)` for what the loop around `line` yields.

    `line` is where the model gets the batch: what is moved below it is no input.
    """


@dataclass(frozen=True, kw_only=True)
class RemoveEdit(LineEdit):
    """Remove the statement at `line`, a call of `callee` ("synchronize") and nothing else."""

    callee: str


@dataclass(frozen=True, kw_only=True)
class SinglePrecisionEdit(LineEdit):
    """The calls of `callee` at `line` (`.double()`, `from_numpy(x)`) give float32, not float64."""

    callee: str


@dataclass(frozen=True, kw_only=True)
class BatchCastEdit(LineEdit):
    """`x, y = x.float(), y.float()` as the first statement of the loop that begins at `line`."""

    names: tuple[str, ...]
