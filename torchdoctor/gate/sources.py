"""The program's source files: which of them changed while a gate measured, or were not loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from torchdoctor.words.figures import counted

# What no program reads while it trains.
_PROSE = (".md", ".rst", ".txt", ".ipynb", ".gitignore")
_INSTALLED = {"site-packages", "dist-packages"}
_NAMED = 3


class SourcesAtStart:
    """What the working tree's program had loaded, as it stood then.

    Args:
        sources: paths of files (`ProcessFacts.sources`).
        root: of the repository; what lies elsewhere is nobody's working tree.
    """

    def __init__(self, sources: Iterable[str], root: Path) -> None:
        below = {Path(x) for x in sources if Path(x).is_relative_to(root)}
        self._root = root
        self._digests = {path: _digest(path) for path in below}

    def changed(self) -> str | None:
        """Return a sentence if one of them differs by now; None: they are as they were."""
        changed = sorted(path for path, then in self._digests.items() if _digest(path) != then)
        if not changed:
            return None
        more = counted(len(changed) - 1, "more file")
        more = f" and {more}" if len(changed) > 1 else ""
        return (
            f"{changed[0].relative_to(self._root)}{more} changed while the gate measured: its "
            "pairs are of several programs. Measure again."
        )


def _digest(path: Path) -> bytes | None:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None


def unloaded_doubts(
    folders: Sequence[Path], differing: Iterable[str], sources: Iterable[str]
) -> list[str]:
    """Return sentences on what of the difference between the versions was perhaps not measured.

    Args:
        folders: where the versions lay, symbolic links resolved.
        differing: paths below each that differ.
        sources: files that the programs loaded (`ProcessFacts.sources`).
    """
    loaded, changed = set(sources), list(differing)
    python = [path for path in changed if path.endswith(".py")]
    left_out = [x for x in python if not any(str(folder / x) in loaded for folder in folders)]
    packages = [Path(x).parent for x in loaded if x.endswith("/__init__.py")]
    installed = [package for package in packages if package.parent.name in _INSTALLED]
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
    """Return the installed package that has this file of a package of the repository as well."""
    parts = PurePath(path).parts
    for depth, name in enumerate(parts[:-1]):
        # The package's own folder, not one of the same name within another package.
        whole = [x.joinpath(*parts[: depth + 1], "__init__.py") for x in folders]
        above = [x.joinpath(*parts[:depth], "__init__.py") for x in folders]
        if not any(x.exists() for x in whole) or any(x.exists() for x in above):
            continue
        for package in installed:
            if package.name == name and package.joinpath(*parts[depth + 1 :]).exists():
                return package
    return None
