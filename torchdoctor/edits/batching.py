"""A DataLoader that takes whole batches of a TensorDataset, in the order that it had."""

import libcst as cst

from torchdoctor.edits import BatchSamplerEdit
from torchdoctor.edits.changes import ArgumentAdded, ArgumentDropped, Changes, Replaced
from torchdoctor.edits.syntax import Program, argument, argument_number, source_of

_PLACES = {"batch_size": 1, "shuffle": 2, "drop_last": 8}
_STAY = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
_POSITIONAL = 3  # dataset, batch_size, shuffle
_TRUTHS = ("True", "False")


def with_batch_sampler(program: Program, edit: BatchSamplerEdit) -> Changes | None:
    """Give the call a BatchSampler as its sampler; None if an argument makes that unsure."""
    call = program.only_call(program.calls("DataLoader"), edit.line)
    if call is None or not call.args:
        return None
    size = argument(call, "batch_size", _PLACES["batch_size"])
    sampler = argument(call, "sampler")
    if sampler is not None:
        return [] if size is not None and source_of(size) == "None" else None
    names = [arg.keyword.value for arg in call.args if arg.keyword is not None]
    positional = len(call.args) - len(names)
    if not set(names) <= {*_PLACES, *_STAY, "dataset"} or positional > _POSITIONAL:
        return None
    rows = _rows(program, argument(call, "dataset", 0))
    shuffled = _truth(argument(call, "shuffle", _PLACES["shuffle"]))
    dropped = _truth(argument(call, "drop_last"))
    if any(arg.star for arg in call.args) or size is None or "batch_size" in _read(program):
        return None
    if rows is None or shuffled is None or dropped is None:
        return None
    sampler_class = "RandomSampler" if shuffled == "True" else "SequentialSampler"
    prefix, changes = _prefix(program, call, sampler_class)
    if changes is None:
        return None
    batches = f"{prefix}BatchSampler({prefix}{sampler_class}({rows}), {source_of(size)}, {dropped})"
    for name, position in _PLACES.items():
        number = argument_number(call, name, position if position < _POSITIONAL else None)
        if number is not None:
            changes.append(ArgumentDropped(call, number))
    changes.append(ArgumentAdded(call, "sampler", batches))
    changes.append(ArgumentAdded(call, "batch_size", "None"))
    return changes


def _truth(value: cst.BaseExpression | None) -> str | None:
    """Return "True" or "False" of what is given or not given; None: the program decides it."""
    code = "False" if value is None else source_of(value)
    return code if code in _TRUTHS else None


def _rows(program: Program, dataset: cst.BaseExpression | None) -> str | None:
    """Return the source of what is as long as the data set; None: it would be made twice."""
    if isinstance(dataset, (cst.Name, cst.Attribute)):
        return source_of(dataset)
    if not isinstance(dataset, cst.Call) or not dataset.args or dataset.args[0].star:
        return None
    first = dataset.args[0].value
    made = program.full_name(dataset.func).endswith("TensorDataset")
    return source_of(first) if made and isinstance(first, (cst.Name, cst.Attribute)) else None


def _read(program: Program) -> set[str]:
    """Return the attributes that the program reads: with a BatchSampler, `batch_size` is None."""
    return {attribute.attr.value for attribute in program.of(cst.Attribute)}


def _prefix(program: Program, call: cst.Call, sampler_class: str) -> tuple[str, Changes | None]:
    """Return how the program writes the package before a class, and an import if it needs one."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    if owner is not None:
        is_torch_data = program.full_name(owner) == "torch.utils.data"
        return f"{source_of(owner)}.", [] if is_torch_data else None
    if program.full_name(call.func) != "torch.utils.data.DataLoader":
        return "", None
    missing = [name for name in ("BatchSampler", sampler_class) if name not in program.imported]
    if not missing:
        return "", []
    names = ", ".join(missing)
    for line in program.of(cst.ImportFrom):
        package = source_of(line.module) if line.module is not None else ""
        if package == "torch.utils.data" and not isinstance(line.names, cst.ImportStar):
            end = program.span(line.names[-1])[1]
            return "", [Replaced(end, end, f", {names}")]
    return "", None
