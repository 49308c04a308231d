"""Recommended fixes -> one patch of the user's own source, made in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchdoctor.advice.wording import wording
from torchdoctor.edits import Edit
from torchdoctor.edits.diff import edited_files, folder_of, unified_diff
from torchdoctor.words import Recording
from torchdoctor.words.specs import FixSpec

Chosen = Sequence[tuple[str, dict[str, Any]]]


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
    chosen: Chosen, recording: Recording, fixes: Mapping[str, FixSpec]
) -> SourcePatch | None:
    """Return one patch for several fixes; None if no edit can be made for any of them.

    Args:
        chosen: ids and settings, in the order to apply.
        recording: says where what they change is written.
        fixes: by id.
    """
    edits: list[Edit] = []
    made, left_out = [], []
    for ident, settings in chosen:
        more = wording(fixes[ident], settings, recording).edits
        # Two fixes may change one call: each edit starts from what those before it left.
        if more and edited_files([*edits, *more]) is not None:
            edits += more
            made.append(ident)
        else:
            left_out.append(ident)
    files = edited_files(edits) or {}
    changed = {path: after for path, (before, after) in files.items() if after != before}
    folder = folder_of(edits, recording.workload.cwd)
    diff = unified_diff(edits, folder)
    if not changed or diff is None:
        return None
    return SourcePatch(diff=diff, folder=folder, texts=changed, fixes=made, left_out=left_out)
