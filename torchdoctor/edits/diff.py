"""Edits of files -> one unified diff, to be applied with `git apply` or `patch -p1`."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchdoctor.edits import Edit, KeywordEdit
from torchdoctor.edits.reading import read_source

if TYPE_CHECKING:
    from torchdoctor.edits.syntax import Program

_VARIABLE = re.compile(r"""\b(?:environ\.get\(|environ\[|getenv\()\s*["'](\w+)["']""")


def unified_diff(edits: Sequence[Edit], folder: str | Path) -> str | None:
    """Return the edits as a diff with names relative to the folder; None: one cannot be made."""
    files = edited_files(edits)
    return None if files is None else diff_of_files(files, folder)


def diff_of_files(files: Mapping[str, tuple[str, str]], folder: str | Path) -> str | None:
    """Return what was made of files as a diff with names relative to the folder; None: nothing."""
    return "".join(_file_diff(Path(p), *texts, Path(folder)) for p, texts in files.items()) or None


def folder_of(edits: Sequence[Edit], folder: str) -> str:
    """Return where to apply the diff: the folder, else the repository or folder that holds all."""
    files = [Path(edit.file).resolve() for edit in edits]
    if all(file.is_relative_to(Path(folder).resolve()) for file in files):
        return folder
    common = Path(os.path.commonpath([file.parent for file in files]))
    tops = [parent for parent in (common, *common.parents) if (parent / ".git").exists()]
    return str(tops[0] if tops else common)


def instead(edits: Sequence[Edit]) -> list[str]:
    """Return what to do about arguments that are not edited: a command, or where they come from."""
    from torchdoctor.edits.keywords import argument_of, origin_of
    from torchdoctor.edits.options import by_command, by_option_of_script

    lines: list[str] = []
    for edit, program in _programs(edits):
        with contextlib.suppress(Exception):  # as in `edited`
            command = by_command(program, argument_of(program, edit), edit)
            origin = origin_of(program, edit)
            if command is not None:
                lines.append(shlex.join(command))
            elif origin is not None:
                by_hand = [_in_words(edit, origin)]
                with contextlib.suppress(Exception):  # the script cannot be read
                    by_hand = by_option_of_script(edit, origin) or by_hand
                lines += by_hand
    return list(dict.fromkeys(lines))


def _programs(edits: Sequence[Edit]) -> Iterator[tuple[KeywordEdit, Program]]:
    """Yield the edits of arguments with the programs that they change."""
    from torchdoctor.edits.syntax import Program

    for edit in edits:
        if isinstance(edit, KeywordEdit):
            with contextlib.suppress(Exception):  # as in `edited`
                yield edit, Program(read_source(Path(edit.file)))


def _in_words(edit: KeywordEdit, origin: str) -> str:
    variable = _VARIABLE.search(origin)
    if variable and edit.value.isdigit():
        return f"# {edit.keyword} is {origin}: run it with {variable[1]}={edit.value}"
    if origin.startswith("*"):
        return f"# {edit.keyword} may come from {origin}: make it {edit.value} where that is made"
    return f"# {edit.keyword} is {origin}: make that {edit.value} where it is set"


def also_changed(edits: Sequence[Edit]) -> list[tuple[str, str, int]]:
    """Return options whose defaults the edits change, with file and line of their other readers."""
    from torchdoctor.edits.keywords import call_of
    from torchdoctor.edits.options import read_elsewhere

    readers: list[tuple[str, str, int]] = []
    for edit, program in _programs(edits):
        call = call_of(program, edit)
        reads = read_elsewhere(program, call, edit) if call is not None else []
        readers += [(name, edit.file, line) for name, line in reads]
    return list(dict.fromkeys(readers))


def edited_files(edits: Sequence[Edit]) -> dict[str, tuple[str, str]] | None:
    """Return contents before and after the edits by path; None if one cannot be made."""
    from torchdoctor.edits.composing import compose  # LibCST takes a while to import

    if not edits:
        return {}
    composed = compose({"all": edits})
    return composed.files if composed.made else None


def _file_diff(path: Path, before: str, after: str, folder: Path) -> str:
    try:
        name = path.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        name = path.as_posix().lstrip("/")
    old = _header_name(f"a/{name}")
    new = _header_name(f"b/{name}")
    head = f"diff --git {old} {new}\n".replace("\t", "")
    head += f"index {blob_id(before)}..{blob_id(after)}\n"
    lines = difflib.unified_diff(lines_of(before), lines_of(after), old, new)
    ended = [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    ]
    return "".join([head, *ended]) if ended else ""


def blob_id(text: str) -> str:
    """Return what tells a file's contents from others, as git names them."""
    content = text.encode()
    blob = b"blob %d\0%s" % (len(content), content)
    return hashlib.sha1(blob, usedforsecurity=False).hexdigest()[:16]


def lines_of(text: str) -> list[str]:
    """Return the lines as git counts them: a form feed or U+2028 ends none."""
    return [f"{line}\n" for line in text.split("\n")[:-1]] + [
        last for last in text.split("\n")[-1:] if last
    ]


def _header_name(name: str) -> str:
    """Return a name as git writes it into a diff, quoted if it would be misread."""
    data = os.fsencode(name)
    if name.isprintable() and not set(name) & {'"', "\\"}:
        return f"{name}\t" if " " in name else name  # the tab ends the name for `patch`
    plain = bytes(range(0x20, 0x7F)).translate(None, b'"\\')
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in data) + '"'
