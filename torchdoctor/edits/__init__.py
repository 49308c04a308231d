"""Source edits that make a fix permanent: asked for by fixes, made with LibCST, shown as a diff.

A fix names what to change (`edits(settings, recording)`); `composing` makes the edits of several
fixes together, and `diff` the unified diff of the files. An edit that cannot be made with certainty
is not made: the instruction stands then.

May import: schema, queries.
"""

import msgspec


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one file."""

    file: str


class LineEdit(Edit, frozen=True, kw_only=True):
    """A change at one line (1-based)."""

    line: int


class KeywordEdit(LineEdit, frozen=True, kw_only=True):
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


class AssignedEdit(LineEdit, frozen=True, kw_only=True):
    """The statement at `line` assigns `value` to an attribute `name` (`config.use_cache`)."""

    name: str
    value: str


class DropKeywordEdit(LineEdit, frozen=True, kw_only=True):
    """Take one argument away from a call, where it is given.

    Not where it is computed from `unless` (`persistent_workers=args.workers > 0`), nor with
    `only_literal` where the program decides the value.
    """

    callee: str
    keyword: str
    position: int | None = None
    unless: str | None = None
    only_literal: bool = False


class StatementEdit(Edit, frozen=True, kw_only=True):
    """Insert a statement after a module's imports, or change the only one that sets the same."""

    statement: str


class DecoratorEdit(LineEdit, frozen=True, kw_only=True):
    """Decorate the innermost function that covers `line`, unless it trains."""

    decorator: str


class WithEdit(LineEdit, frozen=True, kw_only=True):
    """Put statements under a context manager.

    From the statement at `line`, which calls `callee` (`model`, `self.net`, or a function's name),
    up to the last one that the statement at `before` needs, in the innermost block that holds both.
    "{device}" in `context` becomes the program's own name for the device's type, or `device`.
    """

    callee: str
    before: int
    context: str
    device: str = ""


class BeforeLoopEdit(LineEdit, frozen=True, kw_only=True):
    """Insert a statement before the outermost loop around `line` that does not assign `name`.

    Without a loop in that function: before the statement itself, unless `needs_loop`. Further down
    where a name of the statement has no value above the loop. Not made where none fits.
    """

    statement: str
    name: str  # what the statement is about
    needs_loop: bool = True
    function: str = ""  # in which the line ran: "main", "<module>"


class ScaledStepEdit(LineEdit, frozen=True, kw_only=True):
    """`loss.backward()` at `line` and the optimizer's step after it go through `scaler`.

    `scaler` is no name of the module's. What lies between the two sees unscaled gradients.
    """

    scaler: str


class InputEdit(LineEdit, frozen=True, kw_only=True):
    """Chain a method to the first argument of the call of `callee` at `line`.

    With "{argument}" in `method`, that stands in place of an argument that is a name.
    """

    callee: str
    method: str  # ".to(memory_format=torch.channels_last)"


class AsTensorEdit(LineEdit, frozen=True, kw_only=True):
    """`torch.tensor(array)` -> `torch.as_tensor(array)`; `joined`: of a list of arrays."""

    joined: bool


class ReadOriginalEdit(LineEdit, frozen=True, kw_only=True):
    """Read the original in place of the only copy of a tensor that is made at `line`."""


class OnDeviceEdit(LineEdit, frozen=True, kw_only=True):
    """`torch.zeros(...).to(device)` -> `torch.zeros(..., device=device)` at `line`."""

    maker: str  # "zeros"


class DetachEdit(LineEdit, frozen=True, kw_only=True):
    """What the statement at `line` adds or appends to `name`, without its graph.

    Not where a backward goes through `name`. With `from_item`: `total += loss.item()` becomes
    `total += loss.detach()`, where nothing in that function needs a Python number of it.
    """

    name: str
    from_item: bool = False


class NonBlockingEdit(LineEdit, frozen=True, kw_only=True):
    """`x.to(device)` -> `x.to(device, non_blocking=True)` for what the loop around `line` yields.

    `line` is where the model gets the batch: what is moved below it is no input.
    """


class RemoveEdit(LineEdit, frozen=True, kw_only=True):
    """Remove the statement at `line`, a call of `callee` ("synchronize") and nothing else."""

    callee: str


class SinglePrecisionEdit(LineEdit, frozen=True, kw_only=True):
    """The calls of `callee` at `line` (`.double()`, `.half()`, `from_numpy(x)`) give float32."""

    callee: str


class BatchCastEdit(LineEdit, frozen=True, kw_only=True):
    """`x, y = x.float(), y.float()` as the first statement of the loop that begins at `line`."""

    names: tuple[str, ...]


class KeptSamplesEdit(LineEdit, frozen=True, kw_only=True):
    """The method at `line` makes each sample once; none if the class reads what is `changed`."""

    changed: tuple[str, ...]


class OpenedOnceEdit(LineEdit, frozen=True, kw_only=True):
    """`with zipfile.ZipFile(path) as archive:` at `line` gets what each process opens once.

    Only for reading, and where nothing in that function closes it.
    """


class KeptResultEdit(LineEdit, frozen=True, kw_only=True):
    """The function around `line` keeps its last results, where they come of its arguments alone."""

    function: str
    kept: int  # results


class KeptModelEdit(LineEdit, frozen=True, kw_only=True):
    """What makes the model that is called by `name` at `line` runs once, and keeps it."""

    name: str


class RareCallEdit(Edit, frozen=True, kw_only=True):
    """Statements that call `function` for a report alone run where that is read.

    That is in the `if` which reads the result; or, where nothing does, in every `every`-th step.
    """

    function: str
    every: int


class RingEdit(LineEdit, frozen=True, kw_only=True):
    """The deque that is read at `line` becomes a list, overwritten in a ring, of the same order."""


class JoinedOnceEdit(LineEdit, frozen=True, kw_only=True):
    """What the loop around `line` joins in each turn is collected, and joined behind it."""


class BatchSamplerEdit(LineEdit, frozen=True, kw_only=True):
    """`DataLoader(table, batch_size=n)` at `line` takes whole batches of a TensorDataset."""
