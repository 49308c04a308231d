"""A diff of `edits.diff` applied to the files that it names, and taken back: all or nothing."""

import ast
import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchdoctor.edits.diff import blob_id, lines_of
from torchdoctor.edits.reach import (
    check_place,
    check_texts,
    checked_source,
    named_source,
    project_folder,
)
from torchdoctor.edits.reading import read_source
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import write_atomically

APPLIED_NAME = "applied-patch.json"  # beside the report
_FILE = re.compile(r"^(?=diff --git )", re.MULTILINE)
_IDS = re.compile(r"^index (\w+)\.\.(\w+)$", re.MULTILINE)
_NAME = re.compile(r'^\+\+\+ (?:b/([^\t\n]*)|("b/.*"))\t?$', re.MULTILINE)
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? .*\n", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """The text of a file before and after a patch."""

    before: str
    after: str


Changes = dict[str, FileChange]  # by path


def changes(diff: str, folder: str, record: Path, force: bool = False) -> Changes:
    """Return what a diff, as `edits.diff` makes it, does to the files in the folder; write nothing.

    `record` is that of `apply`, if any. `force`: also change files with uncommitted changes, or
    changed since the run, if the lines are there, once.
    Raise UsageError, which says why, if a file is not to be changed: see `edits.reach`.
    """
    if any(_is_patched(path, change) for path, change in _applied(record).items()):
        undo_it = f"torchdoctor patch {shlex.quote(str(record.parent))} --undo"
        raise UsageError(f"A patch of this run is applied: {undo_it} takes it back.")
    top = project_folder(folder)
    made: Changes = {}
    for part in _FILE.split(diff)[1:]:
        path = named_source(_name(part), top)
        if str(path) in made:
            raise UsageError(f"The patch of this report is damaged: it names {path} twice.")
        made[str(path)] = _change(part, path, force)
    if not made:
        raise UsageError("This report holds no patch that can be applied.")
    return made


def _change(part: str, path: Path, force: bool) -> FileChange:
    """Return what the part of a diff that is of one file does to it."""
    ids = _IDS.search(part)
    try:
        before = read_source(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", error)
        raise UsageError(f"Cannot patch {path} ({why}): put back what was measured.") from error
    same = ids is not None and ids[1] == blob_id(before)
    for refused, why in (
        (not same, "was changed since the run: measure it again"),
        (_uncommitted(path), "has uncommitted changes: commit them first"),
    ):
        if refused and not force:
            raise UsageError(f"{path} {why}, or patch it all the same with --force.")
    try:
        after = _patched(before, _HUNK.split(part)[1:], exactly=same)
    except (IndexError, ValueError) as error:
        raise UsageError(f"The patch of this report is damaged where it changes {path}.") from error
    if after is None:
        raise UsageError(
            f"The lines that the patch changes are not in {path} any more, or more than once: "
            "measure the program again with torchdoctor run."
        )
    change = FileChange(before=before, after=after)
    check_texts(path, change.before, change.after)
    return change


def apply(made: Changes, record: Path) -> None:
    """Write the files, and into the record what `undo` needs; where one fails, none is changed."""
    write_atomically(record, msgspec.json.encode(made), through_link=False)
    patched: list[str] = []
    try:
        for path, change in made.items():
            write_atomically(path, change.after.encode())
            patched.append(path)
    except BaseException:
        for path in patched:
            write_atomically(path, made[path].before.encode())
        record.unlink()
        raise


def undo(record: Path) -> list[str]:
    """Write what the files held before; return their paths. UsageError: nothing was applied.

    The record is held to what `changes` holds a diff to: it may come from elsewhere too.
    """
    if not (applied := _applied(record)):
        raise UsageError("No patch of this run was applied: name another (report --list).")
    for path, change in applied.items():
        check_place(Path(path))
        check_texts(Path(path), change.before, change.after)
    states = {path: _is_patched(path, change) for path, change in applied.items()}
    for path in (path for path, state in states.items() if state is None):
        raise UsageError(
            f"{path} is not as the patch left it. If it is gone, put it back; if the patch is "
            "gone, --apply makes it again; else take back the changes since, or the patch by hand."
        )
    patched = [path for path, state in states.items() if state]
    for path in patched:
        checked_source(Path(path))
    for path in patched:
        write_atomically(path, applied[path].before.encode())
    record.unlink()
    return patched


def _applied(record: Path) -> Changes:
    if not os.path.lexists(record):
        return {}
    if record.is_symlink() or not record.is_file():
        raise UsageError(f"{record} is no file that torchdoctor wrote. Remove it to go on.")
    try:
        return msgspec.json.decode(record.read_bytes(), type=Changes)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"Cannot read {record}: {error}. Remove it to go on.") from error


def _is_patched(path: str, change: FileChange) -> bool | None:
    """Return whether a file is as the patch left it; None: neither so, nor as it was before."""
    if not Path(path).is_file():  # a pipe would be waited for
        return None
    try:
        text = read_source(Path(path))
    except (OSError, UnicodeDecodeError):
        return None
    return text == change.after if text in (change.before, change.after) else None


def _name(part: str) -> str:
    """Return the name in a part of a diff; empty: there is none that can be read."""
    match = _NAME.search(part)
    if match is None or match[2] is None:
        return match[1] if match is not None else ""
    with contextlib.suppress(SyntaxError, ValueError, TypeError):
        # As git quotes a name: a string of bytes in C, which Python reads the same.
        return os.fsdecode(ast.literal_eval(f"b{match[2]}"))[2:]
    return ""


def _patched(text: str, parts: Sequence[str], exactly: bool) -> str | None:
    """Return the text with the hunks; None where the lines that a hunk changes are not there.

    `parts`: first line, number of lines and text of each. If not `exactly`, they may have moved.
    """
    lines = lines_of(text)
    whole = list[str]()
    done = 0
    for begin, number, hunk in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        body: list[str] = []
        for line in lines_of(hunk):
            if line[0] == "\\":  # No newline at end of file
                body[-1] = body[-1][:-1]
            else:
                body.append(line)
        old = [line[1:] for line in body if line[0] in " -"]
        first = int(begin) - (number != "0")
        at = [n for n in range(done, len(lines) - len(old) + 1) if lines[n : n + len(old)] == old]
        at = [n for n in at if n == first] if exactly else at
        if len(at) != 1:
            return None
        whole += [*lines[done : at[0]], *(line[1:] for line in body if line[0] in " +")]
        done = at[0] + len(old)
    return "".join([*whole, *lines[done:]])


def _uncommitted(path: Path) -> bool:
    """Return True if git knows the file, with other content; False outside a repository."""
    # A repository's own settings may name a program that git starts to watch its files.
    command = [
        "git",
        "-c",
        "core.fsmonitor=false",
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        path.name,
    ]
    try:
        ran = subprocess.run(command, cwd=path.parent, capture_output=True, check=False)
    except OSError:  # there is no git
        return False
    return ran.returncode == 0 and bool(ran.stdout.strip())
