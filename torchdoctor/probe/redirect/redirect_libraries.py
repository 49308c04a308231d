"""Writers in C that are given a path: sqlite3, torch.save, safetensors."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any
from urllib.parse import quote, unquote


def install(layer: Any, watch: Any) -> None:
    """Redirect each library's paths once it is imported."""
    watch.when_imported("sqlite3", functools.partial(_sqlite, layer))
    watch.when_imported("torch", functools.partial(_torch, layer))
    watch.when_imported("safetensors", functools.partial(_safetensors, layer))


def _mapped(layer: Any, path: Any, write: bool, keep: bool = False) -> Any:
    """Return the file that stands for a path; anything that is no path as it is."""
    if layer.busy or not isinstance(path, (str, bytes, os.PathLike)):
        return path
    with layer:
        full = layer.name(path, follow=True)
        if layer.is_exempt(full):
            return path
        target = layer.for_write(full, keep) if write else layer.for_read(full)
        return path if target == full else target


def _wrap(owner: Any, name: str, position: int, keyword: str, change: Any) -> None:
    """Give owner.name change(path) where it takes a path."""
    old = getattr(owner, name, None)
    if old is None:
        return

    @functools.wraps(old)
    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position:
            args = (*args[:position], change(args[position]), *args[position + 1 :])
        elif keyword in kwargs:
            kwargs[keyword] = change(kwargs[keyword])
        return old(*args, **kwargs)

    setattr(owner, name, function)


def _sqlite(layer: Any, sqlite3: Any) -> None:
    def change(path: Any) -> Any:
        text = path if isinstance(path, str) else ""
        if text in ("", ":memory:") and isinstance(path, str):
            return path
        if text.startswith("file:"):
            name, _, query = text[5:].partition("?")
            if not name or name.startswith(":memory:") or "mode=memory" in query:
                return path
            target = quote(os.fspath(database(unquote(name))))
            return f"file:{target}?{query}" if query else f"file:{target}"
        return database(path)

    def database(path: Any) -> Any:
        for suffix in ("-wal", "-journal"):
            beside = os.fsdecode(path) + suffix
            if os.path.exists(beside):
                _mapped(layer, beside, write=True, keep=True)
        return _mapped(layer, path, write=True, keep=True)

    for owner in (sqlite3, sqlite3.dbapi2):
        _wrap(owner, "connect", 0, "database", change)


def _torch(layer: Any, torch: Any) -> None:
    for owner in (torch, torch.serialization):
        if not hasattr(owner.save, "_redirected"):
            _wrap(owner, "save", 1, "f", lambda path: _mapped(layer, path, write=True))
            _wrap(owner, "load", 0, "f", lambda path: _mapped(layer, path, write=False))


def _safetensors(layer: Any, safetensors: Any) -> None:
    # Its `torch` and `numpy` parts take these names from here when they are imported.
    _wrap(safetensors, "serialize_file", 1, "filename", lambda p: _mapped(layer, p, write=True))
    _wrap(safetensors, "safe_open", 0, "filename", lambda p: _mapped(layer, p, write=False))


def repair_old_pathlib() -> None:
    """Repair pathlib, which before Python 3.11 keeps the functions of `os` that it found."""
    pathlib = sys.modules.get("pathlib")
    accessor = getattr(pathlib, "_NormalAccessor", None)
    if accessor is None:
        return
    for name in vars(accessor).copy():
        if not name.startswith("_") and hasattr(os, name):
            setattr(accessor, name, staticmethod(getattr(os, name)))
    import io

    accessor.open = staticmethod(io.open)
