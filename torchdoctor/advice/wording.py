"""A fix as code for one program: its instruction, its source edits and the place they change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torchdoctor.edits import Edit
from torchdoctor.facts.hardware import compute_capability
from torchdoctor.words import Location, Recording
from torchdoctor.words.specs import FixSpec

_Part = TypeVar("_Part")


@dataclass(frozen=True, kw_only=True)
class Wording:
    """A fix as code for one program.

    `failures` holds a sentence for each part that the fix failed to word; the general form of its
    page stands in place of an instruction that failed.
    """

    instruction: str | None
    edits: list[Edit] = field(default_factory=list)
    location: Location | None = None
    failures: list[str] = field(default_factory=list)


def wording(fix: FixSpec, settings: dict[str, Any], recording: Recording) -> Wording:
    """Return how this program makes a fix permanent; a fix that fails costs its own lines only."""
    failures: list[str] = []

    def part(name: str, make: Callable[[], _Part], instead: _Part) -> _Part:
        return _guarded(fix, name, make, instead, failures)

    no_edits: list[Edit] = []
    no_location: Location | None = None
    return Wording(
        instruction=part(
            "instruction", lambda: fix.instruction(settings, recording), fix.permanent_form
        ),
        edits=part("edit", lambda: fix.edits(settings, recording), no_edits),
        location=part("location", lambda: fix.location(recording), no_location),
        failures=failures,
    )


def wording_for_trace(fix: FixSpec, recording: Recording) -> Wording:
    """Return the code of a fix for a trace without its program; None: its GPU cannot do it."""
    capability = compute_capability(recording)
    if capability is not None and capability < fix.least_capability:
        return Wording(instruction=None)
    general: str | None = fix.permanent_form
    if (advice := fix.advice) is None:
        return Wording(instruction=general)
    failures: list[str] = []
    text = _guarded(fix, "advice", lambda: advice(recording), general, failures)
    return Wording(instruction=text, failures=failures)


def _guarded(
    fix: FixSpec, name: str, make: Callable[[], _Part], instead: _Part, failures: list[str]
) -> _Part:
    try:
        return make()
    except Exception as error:
        failures.append(
            f"The {name} of the fix {fix.ident} could not be written for this program "
            f"({type(error).__name__}: {error}). `torchdoctor explain {fix.ident}` shows "
            "its general form."
        )
        return instead
