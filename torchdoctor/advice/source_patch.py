"""Recommended fixes -> one patch of the user's own source, made in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchdoctor.advice.wording import wording
from torchdoctor.edits import Edit
from torchdoctor.edits.diff import edited_files, folder_of, unified_diff
from torchdoctor.words import Recording

Fixes = Sequence[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class SourcePatch:
    """What `git apply` would do.

    diff: names are relative to `folder`; texts: the changed files' new
    contents by path; fixes: ids of those that it makes permanent; left_out: of those that no edit
    can be made for with certainty.
    """

    diff: str
    folder: str
    texts: dict[str, str]
    fixes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def contents(self) -> dict[str, bytes]:
        """The changed files as a launch gets them."""
        return {path: text.encode("utf-8") for path, text in self.texts.items()}


def source_patch(
    fixes: Fixes, recording: Recording, modules: Mapping[str, Any]
) -> SourcePatch | None:
    """One patch for several fixes; None where no edit can be made for any of them.

    Args:
        fixes: ids and settings, in the order to apply.
        recording: says where what they change is written.
        modules: fix modules by id.
    """
    edits: list[Edit] = []
    made, left_out = [], []
    for ident, settings in fixes:
        more = wording(ident, modules[ident], settings, recording).edits
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
