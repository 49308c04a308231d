"""Changed files that the program did not load: their change is on neither side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from torchdoctor.facts.counts import counted

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
    packages = [Path(x).parent for x in loaded if x.endswith("/__init__.py")]
    installed = [one for one in packages if one.parent.name in _INSTALLED]
    copies = [(x, copy) for x in left_out if (copy := _installed_copy(x, folders, installed))]
    if copies:
        path, copy = copies[0]
        more = f" (and {counted(len(copies) - 1, 'more file')})" if len(copies) > 1 else ""
        return [
            f"{path}{more} differs and was not loaded; the program loaded the installed {copy}, "
            "which is the same on both sides. If that is a copy of it, the change was not "
            "compared: install the working tree with pip install -e, or put it on PYTHONPATH."
        ]
    code_alone = all(path.endswith((".py", *_PROSE)) for path in changed)
    if not python or len(left_out) < len(python) or not code_alone:
        return []
    named = ", ".join(python[:_NAMED]) + (", ..." if len(python) > _NAMED else "")
    return [
        f"No process of the program that was seen loaded a Python file that differs ({named}): "
        "both sides may be the same program."
    ]


def _installed_copy(path: str, folders: Sequence[Path], installed: Sequence[Path]) -> Path | None:
    """The installed package that has this file of a package of the repository as well."""
    parts = PurePath(path).parts
    for depth, name in enumerate(parts[:-1]):
        # The package's own folder, not one of the same name within another package.
        whole = [one.joinpath(*parts[: depth + 1], "__init__.py") for one in folders]
        above = [one.joinpath(*parts[:depth], "__init__.py") for one in folders]
        if not any(x.exists() for x in whole) or any(x.exists() for x in above):
            continue
        for package in installed:
            if package.name == name and package.joinpath(*parts[depth + 1 :]).exists():
                return package
    return None
