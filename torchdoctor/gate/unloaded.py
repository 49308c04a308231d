"""Changed files that the program did not load: their change is on neither side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from torchdoctor.records.counts import counted

# What no program reads while it trains.
_PROSE = (".md", ".rst", ".txt", ".ipynb", ".gitignore")
_INSTALLED = {"site-packages", "dist-packages"}
_NAMED = 3


def unloaded_doubts(
    folders: Sequence[Path], differing: Iterable[str], sources: Iterable[str]
) -> list[str]:
    """What of the difference between two versions was perhaps not measured, as sentences.

    Args:
        folders: where the versions lay, symbolic links resolved.
        differing: paths below each that differ.
        sources: files that the programs loaded (`ProcessFacts.sources`).
    """
    loaded, changed = set(sources), list(differing)
    python = [path for path in changed if path.endswith(".py")]
    left_out = [x for x in python if not any(str(one / x) in loaded for one in folders)]
    copies = {path: copy for path in left_out if (copy := _installed_copy(path, loaded))}
    found = []
    if copies:
        path, copy = next(iter(copies.items()))
        more = f" (and {counted(len(copies) - 1, 'more file')})" if len(copies) > 1 else ""
        found.append(
            f"{path}{more} differs, but the program loaded {copy}, an installed copy that is the "
            "same on both sides: the change there was not compared. Install the working tree "
            "with pip install -e, or put it on PYTHONPATH."
        )
    code_alone = all(path.endswith((".py", *_PROSE)) for path in changed)
    if python and len(left_out) == len(python) and code_alone and not copies:
        named = ", ".join(python[:_NAMED]) + (", ..." if len(python) > _NAMED else "")
        found.append(
            "No process of the program that was seen loaded a Python file that differs "
            f"({named}): both sides may be the same program."
        )
    return found


def _installed_copy(path: str, loaded: set[str]) -> str | None:
    """The file of an installed package that stands in for this one of the repository."""
    parts = PurePath(path).parts
    for package in (Path(source).parent for source in loaded if source.endswith("/__init__.py")):
        if package.name not in parts[:-1]:
            continue
        below = parts[parts.index(package.name) + 1 :]
        copy = package.joinpath(*below)
        if _INSTALLED & set(package.parts) and copy.exists():
            return str(copy)
    return None
