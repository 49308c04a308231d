"""A fix as code for one program: its instruction, its source edits and the place they change."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torchdoctor.edits import Edit
from torchdoctor.words import Location, Recording

_PERMANENT = re.compile(r"^Make it permanent\n-+\n(.*?)(?=^\S[^\n]*\n-+$|\Z)", re.M | re.S)
_Part = TypeVar("_Part")


@dataclass(frozen=True, kw_only=True)
class Wording:
    """How a fix is written for one program.

    `failures` holds a sentence for each part that the fix failed to word; the general form of its
    page stands in place of an instruction that failed.
    """

    instruction: str | None
    edits: list[Edit] = field(default_factory=list)
    location: Location | None = None
    failures: list[str] = field(default_factory=list)


def wording(ident: str, module: Any, settings: dict[str, Any], recording: Recording) -> Wording:
    """Return how this program makes a fix permanent; a fix that fails costs its own lines only."""
    failures: list[str] = []

    def part(name: str, instead: _Part, make: Callable[[], _Part]) -> _Part:
        return _guarded(ident, name, make, instead, failures)

    nothing: list[Edit] = []
    edits = nothing
    if hasattr(module, "edits"):
        edits = part("edit", nothing, lambda: module.edits(settings, recording))
    location: Location | None = None
    if hasattr(module, "location"):
        location = part("location", location, lambda: module.location(recording))
    text = part("instruction", None, lambda: module.instruction(settings, recording))
    return Wording(
        instruction=permanent_form(module) if text is None else text,
        edits=edits,
        location=location,
        failures=failures,
    )


def wording_for_trace(ident: str, module: Any, recording: Recording) -> Wording:
    """Return the code of a fix for a trace without its program; None: its GPU cannot do it."""
    if not hasattr(module, "advice"):
        return Wording(instruction=permanent_form(module))
    failures: list[str] = []
    general = permanent_form(module)
    text = _guarded(ident, "advice", lambda: module.advice(recording), general, failures)
    return Wording(instruction=text, failures=failures)


def permanent_form(module: Any) -> str:
    """Return the code of the page's "Make it permanent", which fits any program."""
    match = _PERMANENT.search(inspect.getdoc(module) or "")
    return textwrap.dedent(match[1]).strip("\n") if match else ""


def _guarded(
    ident: str, name: str, make: Callable[[], _Part], instead: _Part, failures: list[str]
) -> _Part:
    try:
        return make()
    except Exception as error:
        failures.append(
            f"The {name} of the fix {ident} could not be written for this program "
            f"({type(error).__name__}: {error}). `torchdoctor explain {ident}` shows its general "
            "form."
        )
        return instead
