"""Which files a patch may change: Python sources of the project that it is applied in, no others.

A report, and the record of an applied patch, may come from elsewhere and name any file. So what
they name is held against the current folder: the file must lie at or below it, or in its
repository.
"""

import ast
import os
import stat
from pathlib import Path, PurePosixPath

from torchdoctor.schema.errors import UsageError

_SUFFIXES = (".py", ".pyw")
_UNNAMED = "The patch of this report is damaged: it names no file."


def project_folder(folder: str) -> Path:
    """Return the folder that a patch is of, links resolved; UsageError: we are not in or above it.

    `folder`: as the report names it.
    """
    here = Path.cwd().resolve()
    there = _resolved(Path(folder))
    if not (here.is_relative_to(there) or there.is_relative_to(here)):
        raise UsageError(f"The run measured the files in {folder}: call this there.")
    return there


def named_source(name: str, folder: Path) -> Path:
    """Return the file that a diff names, links resolved; UsageError if it is not to be changed.

    `folder`: that of `project_folder`.
    """
    if not name:
        raise UsageError(_UNNAMED)
    if name.startswith("/") or ".." in PurePosixPath(name).parts:
        raise UsageError(
            f"The patch of this report names {name}, which is no path below the project: nothing "
            "was changed."
        )
    path = checked_source(folder / name)
    if not path.is_relative_to(folder):
        raise UsageError(_outside(path, folder))
    return path


def check_place(path: Path) -> Path:
    """Return the path, links resolved; UsageError: none of a source that we may change from here.

    It lies at or below the current folder or in its repository, and has the name of a source.
    """
    real = _resolved(path)
    reach = _reach()
    if not real.is_relative_to(reach):
        raise UsageError(_outside(real, reach))
    inside = [part.casefold() for part in real.relative_to(reach).parts]
    if ".git" in inside or not _may_be_source(real):
        raise UsageError(f"{path} is no Python source: a patch changes no other files.")
    return real


def checked_source(path: Path) -> Path:
    """Return the path, links resolved, of a file at a place that `check_place` allows.

    It exists and has no further hard links: those would be changed too, or part from it.
    UsageError: it is not so.
    """
    real = check_place(path)
    try:
        status = real.stat()
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"Cannot patch {path} ({why}): put back what was measured.") from error
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"Cannot patch {path}: it is no file.")
    if not _is_utf8(str(real)):
        raise UsageError(
            f"{path} has a name that is no UTF-8, which no record can hold: apply the printed diff "
            "with git apply."
        )
    if status.st_nlink > 1:
        raise UsageError(
            f"{path} has further names (hard links), which would be changed too or part from it: "
            "give the project a copy of its own, or apply the printed diff with git apply."
        )
    return real


def check_texts(path: Path, *texts: str) -> None:
    """Raise UsageError for a file that has no suffix, if it is no Python before or after."""
    if not path.suffix and not all(map(_is_python, texts)):
        raise UsageError(f"{path} is no Python source: a patch changes no other files.")


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_python(text: str) -> bool:
    try:
        ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _may_be_source(path: Path) -> bool:
    """Return True for the names of Python files; a script may have no suffix, if not hidden."""
    suffix = path.suffix.casefold()
    return suffix in _SUFFIXES or (not suffix and not path.name.startswith("."))


def _resolved(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:  # a NUL
        raise UsageError(_UNNAMED) from error


def _reach() -> Path:
    """Return the repository that the current folder is in, else the current folder."""
    here = Path.cwd().resolve()
    tops = (folder for folder in (here, *here.parents) if (folder / ".git").exists())
    return next(tops, here)


def _outside(path: Path, folder: Path) -> str:
    return (
        f"{path} lies outside {folder}: a patch changes the files of the project alone that it is "
        "applied in, so call this in the folder of that project."
    )
