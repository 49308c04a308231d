"""What each sample workload says of itself: the fields at the top of its docstring.

A workload's docstring holds four fields, each at the start of a line:

    Illness: a sentence or two
    Check expected: ids of checks, comma-separated, or none
    Bottleneck expected: a branch of the decision tree, or none
    Fix expected: the id of a fix, or none

The last three may go on with answers for other machines: `cpu; on a GPU: gpu`. The conditions are
`on a GPU`, `without a GPU` and `on a CPU without bfloat16 units`.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

FIELDS = ("Illness", "Check expected", "Bottleneck expected", "Fix expected")
CONDITIONS = ("on a GPU", "without a GPU", "on a CPU without bfloat16 units")


@dataclass(frozen=True)
class Expectation:
    """What is wrong with a workload, and what should be found; conditions map to other answers."""

    script: Path
    illness: str
    checks: dict[str, tuple[str, ...]]
    bottleneck: dict[str, tuple[str, ...]]
    fix: dict[str, tuple[str, ...]]


def answers(text: str) -> dict[str, tuple[str, ...]]:
    """Split `a, b; on a GPU: c` into {"": ("a", "b"), "on a GPU": ("c",)}; `none`: no entry."""
    found = {}
    for part in text.split(";"):
        condition, _, ids = part.strip().rpartition(": ")
        if condition and condition not in CONDITIONS:
            raise ValueError(f"unknown condition: {condition}")
        names = tuple(name.strip() for name in ids.split(","))
        found[condition] = () if names == ("none",) else names
    return found


def applying(found: dict[str, tuple[str, ...]], gpu: bool, bfloat16: bool) -> tuple[str, ...]:
    """Return the ids of `found` that hold on a machine with a GPU, or with bfloat16 units."""
    if gpu:
        return found.get("on a GPU", found[""])
    if not bfloat16 and "on a CPU without bfloat16 units" in found:
        return found["on a CPU without bfloat16 units"]
    return found.get("without a GPU", found[""])


def read(script: Path) -> Expectation | None:
    """Parse the docstring of `script`; None for a module that is no workload.

    Raises ValueError for a workload that lacks a field.
    """
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    fields = {}
    for name in FIELDS:
        # A field goes on over indented lines; what stands in brackets after it is a remark.
        match = re.search(rf"^{name}: (.*(?:\n +[^(\s].*)*)", docstring, re.MULTILINE)
        fields[name] = " ".join(match[1].split()) if match else ""
    if script.name == Path(__file__).name:
        return None
    missing = [name for name, text in fields.items() if not text]
    if missing:
        raise ValueError(f"{script.name} lacks {', '.join(missing)}")
    return Expectation(
        script=script,
        illness=fields["Illness"],
        checks=answers(fields["Check expected"]),
        bottleneck=answers(fields["Bottleneck expected"]),
        fix=answers(fields["Fix expected"]),
    )


def read_all() -> list[Expectation]:
    """Return the expectations of all workloads beside this file, by name."""
    found = (read(script) for script in sorted(Path(__file__).parent.glob("*.py")))
    return [expectation for expectation in found if expectation is not None]
