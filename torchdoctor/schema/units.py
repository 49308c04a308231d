"""What a step of a program is called: the one source of that word."""

_CALLED = {"loader": "batch", "forward": "call", "entry": "call"}  # by the boundary of what infers


def unit_of(kind: str, boundary: str | None) -> str:
    """Return what a step is called: a batch or a call where a program infers.

    `kind`: training or inference; `boundary`: the kind of what separates two steps.
    """
    return _CALLED.get(boundary or "", "step") if kind == "inference" else "step"


def several(unit: str) -> str:
    """Return what several of a unit are called."""
    return f"{unit}es" if unit.endswith("ch") else f"{unit}s"
