"""How a program calls the type of its device at a place, so that an edit works elsewhere too.

A program that runs on other machines as well has a name for its device, such as `device`. Which of
the usual names it is follows from what the file assigns, and from the parameters of the functions
around the place; it has to have a value there.
"""

from collections.abc import Collection, Iterator

import libcst as cst

from torchdoctor.edits.bindings import Bindings
from torchdoctor.edits.syntax import Block, Program, Syntax, source_of

_MAKES_DEVICE = ("torch.device(", "torch.accel")


def device_type(program: Program, line: int, block: Block, number: int) -> str | None:
    """Return the expression for the device's type before a statement; None: there is none.

    `line`: of the statement, which is the one with this number in the block.
    """
    bindings = Bindings(program)
    for name, expression in _usual_names(program, line):
        if bindings.bound(name, block, number):
            return expression
    return None


def _usual_names(program: Program, line: int) -> Iterator[tuple[str, str]]:
    """Yield what the program may call its device here, with the expression for its type."""
    functions = program.of(cst.FunctionDef)
    around = [function for function in functions if program.covers(function, line)]
    parameters = {
        parameter.name.value
        for function in around
        for parameter in Syntax(function.params).of(cst.Param)
    }
    all_assigned = program.of(cst.Assign)
    assigned_elsewhere = {
        assign
        for function in functions
        if function not in around
        for assign in Syntax(function.body).of(cst.Assign)
    }
    assigned = [assign for assign in all_assigned if assign not in assigned_elsewhere]
    if _values(assigned, "device_type"):
        yield "device_type", "device_type"
    if _values(assigned, "device") or "device" in parameters:
        # A parameter is what the program made elsewhere.
        made = _values(all_assigned, "device")
        is_device = bool(made) and all(value.startswith(_MAKES_DEVICE) for value in made)
        yield "device", "device.type" if is_device else "torch.device(device).type"
    if any(value.startswith("Accelerator(") for value in _values(assigned, "accelerator")):
        yield "accelerator", "accelerator.device.type"
    has_own_device = any(source_of(target) == "self.device" for target in program.targets)
    if has_own_device and "self" in parameters:
        yield "self.device", "torch.device(self.device).type"


def _values(assigns: Collection[cst.Assign], name: str) -> list[str]:
    """Return the sources of what is assigned to a name."""
    return [
        source_of(assign.value)
        for assign in assigns
        for target in assign.targets
        if source_of(target.target) == name
    ]
