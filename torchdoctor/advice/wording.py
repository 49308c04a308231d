"""Fixes as code for one program: instructions, places, source edits, and one patch of them all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from torchdoctor.edits import Edit
from torchdoctor.edits.diff import diff_of_files, folder_of
from torchdoctor.queries.hardware import compute_capability
from torchdoctor.schema import Evidence, FixSet, FixSpec, Location, Recording, Settings, fact

_Part = TypeVar("_Part")


@dataclass(frozen=True, kw_only=True)
class Wording:
    """A fix as code for one program; `failures`: the parts that were not worded."""

    instruction: str | None
    edits: list[Edit] = field(default_factory=list)
    location: Location | None = None
    failures: list[Evidence] = field(default_factory=list)


def wording(fix: FixSpec, settings: Settings, recording: Recording) -> Wording:
    """Return how this program makes a fix permanent; a fix that fails costs its own lines only."""
    failures: list[Evidence] = []
    general, code = fix.permanent_form, lambda: fix.instruction(settings, recording)
    return Wording(
        instruction=_guarded(fix, "instruction", code, general, failures),
        edits=_guarded(fix, "edit", lambda: fix.edits(settings, recording), [], failures),
        location=_guarded(fix, "location", lambda: fix.location(recording), None, failures),
        failures=failures,
    )


def wording_for_trace(fix: FixSpec, recording: Recording) -> Wording:
    """Return the code of a fix for a trace without its program; None: its GPU or torch cannot."""
    capability = compute_capability(recording)
    too_old = capability is not None and capability < fix.least_capability
    if too_old or fix.lack(recording):
        return Wording(instruction=None)
    general: str | None = fix.permanent_form
    failures: list[Evidence] = []
    advice = fix.advice or (lambda recording: general)
    text = _guarded(fix, "advice", lambda: advice(recording), general, failures)
    return Wording(instruction=text, failures=failures)


def _guarded(
    fix: FixSpec, name: str, make: Callable[[], _Part], instead: _Part, failures: list[Evidence]
) -> _Part:
    try:
        return make()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        failures.append(fact("fix-not-worded", part=name, fix=fix.ident, error=why))
        return instead


@dataclass(frozen=True, kw_only=True)
class SourcePatch:
    """A patch of the user's source, as `git apply` takes it."""

    diff: str
    folder: str  # that names in the diff are relative to
    texts: dict[str, str]  # the changed files by path
    fixes: list[str] = field(default_factory=list)  # ids of those that it makes permanent
    left_out: list[str] = field(default_factory=list)  # ids of those without a certain edit

    def contents(self) -> dict[str, bytes]:
        """Return the changed files as a launch gets them."""
        return {path: text.encode("utf-8") for path, text in self.texts.items()}


def source_patch(
    chosen: FixSet, recording: Recording, fixes: Mapping[str, FixSpec]
) -> SourcePatch | None:
    """Return one patch for a set of fixes; None if no edit can be made for any of them.

    A fix is made whole or left out, and the order of the fixes does not matter.
    """
    from torchdoctor.edits.composing import compose  # LibCST takes a while to import

    if recording.workload.notebook is not None:
        return None  # its cells are no source file
    groups = {
        ident: wording(fixes[ident], settings, recording).edits
        for ident, settings in chosen.items()
    }
    composed = compose(groups)
    changed = {path: after for path, (before, after) in composed.files.items() if after != before}
    folder = folder_of(
        [edit for name in composed.made for edit in groups[name]], recording.workload.cwd
    )
    diff = diff_of_files(composed.files, folder)
    if diff is None:
        return None
    return SourcePatch(
        diff=diff,
        folder=folder,
        texts=changed,
        fixes=composed.made,
        left_out=composed.left_out,
    )
