"""The program's source files: which of them changed while a gate measured, or were not loaded."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from torchdoctor.schema import Evidence, fact

# What no program reads while it trains.
_PROSE = (".md", ".rst", ".txt", ".ipynb", ".gitignore")
_INSTALLED = {"site-packages", "dist-packages"}
_NAMED = 3


def digests(sources: Iterable[str], root: Path) -> dict[Path, bytes | None]:
    """Return digests of the files that lie below the repository's root; None: it cannot be read."""
    made: dict[Path, bytes | None] = {}
    for path in filter(lambda path: path.is_relative_to(root), map(Path, sources)):
        try:
            made[path] = hashlib.sha256(path.read_bytes()).digest()
        except OSError:
            made[path] = None
    return made


def changed(then: dict[Path, bytes | None], root: Path) -> Evidence | None:
    """Return which of the files differ by now; None: they are as they were."""
    now = digests(map(str, then), root)
    paths = sorted(path for path in then if now[path] != then[path])
    if not paths:
        return None
    return fact(
        "sources-changed", file=str(paths[0].relative_to(root)), more=len(paths) - 1 or None
    )


def unloaded_doubts(
    folders: Sequence[Path], differing: Iterable[str], sources: Iterable[str]
) -> list[Evidence]:
    """Return doubts on what of the paths that differ was perhaps not measured."""
    loaded = set(sources)
    differ = list(differing)
    python = [path for path in differ if path.endswith(".py")]
    left_out = [
        path for path in python if not any(str(folder / path) in loaded for folder in folders)
    ]
    installed = [Path(source).parent for source in loaded if source.endswith("/__init__.py")]
    installed = [package for package in installed if package.parent.name in _INSTALLED]
    copies = [
        (path, package)
        for path in left_out
        for package in installed
        if package.name in (parts := PurePath(path).parts)[:-1]
        and package.joinpath(*parts[parts.index(package.name) + 1 :]).exists()
    ]
    if copies:
        path, copy = copies[0]
        more = len(copies) - 1 or None
        return [fact("installed-copy-loaded", path=path, more=more, copy=str(copy))]
    code_alone = all(path.endswith((".py", *_PROSE)) for path in differ)
    if not python or len(left_out) < len(python) or not code_alone:
        return []
    named = [*python[:_NAMED], *(["..."] if len(python) > _NAMED else [])]
    return [fact("change-not-loaded", files=named)]
