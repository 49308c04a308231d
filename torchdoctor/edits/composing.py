"""Groups of edits, one for each fix, made together: a group is made whole or not at all."""

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from torchdoctor.edits import Edit
from torchdoctor.edits.reading import read_source
from torchdoctor.edits.source import EditedProgram

_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True)
class Composed(Generic[_Name]):
    """What groups of edits make of the files that they name."""

    files: dict[str, tuple[str, str]]  # by path: the text before, and with all that was made
    made: list[_Name] = field(default_factory=list)
    left_out: list[_Name] = field(default_factory=list)


class Composer:
    """Makes edits of files as they are when one of them is first asked for."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._programs: dict[str, EditedProgram] = {}

    def compose(self, groups: Mapping[_Name, Sequence[Edit]]) -> Composed[_Name]:
        """Make as many groups as go together; the order in which they are given does not matter.

        Where two groups want different things of one place, the one whose name is first is made.
        A group without edits cannot be made.
        """
        wanted = {name: list(edits) for name, edits in groups.items() if edits}
        files = self._together(wanted.values())
        made = set(wanted)
        if files is None:
            made = set()
            files = {}
            for name in sorted(wanted, key=str):
                more = self._together([*(wanted[made_name] for made_name in made), wanted[name]])
                if more is not None:
                    files = more
                    made.add(name)
        return Composed(
            files=files,
            made=[name for name in groups if name in made],
            left_out=[name for name in groups if name not in made],
        )

    def _together(self, groups: Iterable[Sequence[Edit]]) -> dict[str, tuple[str, str]] | None:
        """Return the texts of files before and after all of the groups; None: not all can be."""
        by_path: dict[str, list[Edit]] = {}
        for edit in (edit for group in groups for edit in group):
            # A script that was started as `../train.py` has that name and the recording's.
            path = os.path.realpath(edit.file)
            by_path.setdefault(path, []).append(edit)
        files = {}
        for path, edits in by_path.items():
            program = self._program(path)
            after = None if program is None else program.with_edits(edits)
            if after is None:
                return None
            files[path] = self._texts[path], after
        return files

    def _program(self, path: str) -> EditedProgram | None:
        """Return the program in a file; None where it cannot be read or parsed."""
        if path not in self._programs:
            try:
                self._texts[path] = read_source(Path(path))
                self._programs[path] = EditedProgram(self._texts[path])
            except Exception:
                return None
        return self._programs[path]


def compose(groups: Mapping[_Name, Sequence[Edit]]) -> Composed[_Name]:
    """Make groups of edits together; see `Composer.compose`."""
    return Composer().compose(groups)
