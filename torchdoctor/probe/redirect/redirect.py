"""The fallback sandbox: Python's and torch's writers go to a scratch folder and read back from it.

Used where the kernel offers no overlay. Writes by C++ libraries and by other programs get past
it; those that Python can see are named in `escaped-<pid>.json`. Loaded by path on its own, before
the program's first line.
"""

from __future__ import annotations

import builtins
import errno
import functools
import importlib.util
import io
import os
import shutil
import stat
import sys
from collections.abc import Callable
from typing import Any

_FIRST = ("file", "path", "src")  # names of the first argument, where it is given by name
_HERE = os.path.dirname(os.path.abspath(__file__))


def _sibling(name: str) -> Any:
    """Return a module next to this one, which belongs to no package here."""
    full = f"_torchdoctor_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, os.path.join(_HERE, name + ".py"))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


def install(scratch: str, direct: list[str], watch: Any) -> None:
    """Redirect all writes of this process from now on.

    Args:
        scratch: an existing folder, shared by all processes of the launch.
        direct: folders that are written directly, the probe's own channel first.
        watch: calls back when sqlite3, torch and safetensors are imported.
    """
    layer = _sibling("redirect_layer").Layer(scratch, direct)
    # The import system writes these by functions that nobody can redirect.
    sys.dont_write_bytecode = True
    # Compilers are other programs and must find what they are told to compile.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(layer.scratch, ".inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(layer.scratch, ".triton"))
    _sibling("redirect_escapes").watch(layer, direct[0])
    _redirect_open(layer)
    _redirect_reads(layer)
    _redirect_writes(layer)
    # With descriptors of folders nobody could tell which file is meant.
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    _sibling("redirect_libraries").install(layer, watch)


def _replace(
    layer: Any, owner: Any, name: str, make: Callable[[Any], Any], follow: bool = True
) -> None:
    """Set owner.name = make(old), but for the layer's calls, descriptors and exempt paths.

    `follow`: the call is about what a link leads to, not about the link.
    """
    old = getattr(owner, name, None)
    if old is None:
        return
    new = make(old)

    @functools.wraps(old)
    def function(*args: Any, **kwargs: Any) -> Any:
        if args:
            path, args = args[0], args[1:]
        else:
            key = next((k for k in _FIRST if k in kwargs), None)
            path = kwargs.pop(key) if key is not None else "."
        # A relative path is meant from `dir_fd`, an integer is an open file.
        direct = layer.busy or isinstance(path, int) or path is None
        if direct or any(kwargs.get(k) is not None for k in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            return old(path, *args, **kwargs)
        try:
            with layer:
                full = layer.name(path, follow and kwargs.get("follow_symlinks", True))
                exempt = layer.is_exempt(full)
            if exempt:
                return old(path, *args, **kwargs)
            return new(path, full, *args, **kwargs)
        except OSError as error:
            _show_program_paths(layer, error, path, args)
            trace = error.__traceback__
            error.__traceback__ = trace.tb_next if trace is not None else None
            raise

    setattr(owner, name, function)
    # shutil looks its functions up there.
    for known in (os.supports_fd, os.supports_follow_symlinks):
        if old in known:
            known.add(function)


def _show_program_paths(layer: Any, error: OSError, path: Any, args: tuple[Any, ...]) -> None:
    """Let an error name files as the program wrote them, not as they stand in the layer."""
    given = [path, *(a for a in args[:1] if isinstance(a, (str, bytes, os.PathLike)))]
    with layer:
        known = {}
        for text in reversed(given):
            for follow in (True, False):
                full = layer.name(text, follow)
                known[full] = known[layer.upper(full)] = os.fspath(text)
    for field in ("filename", "filename2"):
        value = getattr(error, field, None)
        if isinstance(value, str):
            setattr(error, field, known.get(value, layer.lower(value)))


def _fail(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), os.fspath(path))


def _special(name: str) -> bool:
    """Return whether it is a pipe, socket or device: writing to it changes no file."""
    try:
        kind = os.stat(name).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))


def _target(layer: Any, path: Any, full: str, write: bool, keep: bool, new: bool) -> str:
    """Return the file to open instead."""
    with layer:
        if not write:
            return str(layer.for_read(full))
        if _special(layer.for_read(full)):
            return full
        if new and layer.exists(full):
            raise _fail(errno.EEXIST, path)
        if layer.is_folder(full):
            raise _fail(errno.EISDIR, path)
        return str(layer.for_write(full, keep))


def _redirect_open(layer: Any) -> None:
    def make_open(old: Any) -> Any:
        def opened(path: Any, full: str, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            # An opener opens what it likes (tempfile: not even this path), through os.open.
            if kwargs.get("opener") is not None:
                return old(path, mode, *args, **kwargs)
            write = any(letter in mode for letter in "wax+")
            target = _target(layer, path, full, write, "w" not in mode, "x" in mode)
            return old(target, mode, *args, **kwargs)

        return opened

    def make_os_open(old: Any) -> Any:
        def opened(path: Any, full: str, flags: int, *args: Any, **kwargs: Any) -> Any:
            write = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
            new = bool(flags & os.O_CREAT and flags & os.O_EXCL)
            unnamed = getattr(os, "O_TMPFILE", 0)
            if unnamed and flags & unnamed == unnamed:
                with layer:
                    layer.make_folders(full, full)
                return old(layer.upper(full), flags, *args, **kwargs)
            if write and not flags & os.O_CREAT and not _seen(layer, full):
                raise _fail(errno.ENOENT, path)
            target = _target(layer, path, full, write, not flags & os.O_TRUNC, new)
            return old(target, flags, *args, **kwargs)

        return opened

    _replace(layer, io, "open", make_open)
    builtins.open = io.open
    _replace(layer, os, "open", make_os_open)


def _seen(layer: Any, full: str) -> bool:
    with layer:
        return bool(layer.exists(full))


def _redirect_reads(layer: Any) -> None:
    def reading(old: Any) -> Any:
        def read(path: Any, full: str, *args: Any, **kwargs: Any) -> Any:
            with layer:
                target = layer.for_read(full)
            # Untouched paths stay as they are written: relative, or ending in a slash.
            return old(path if target == full else target, *args, **kwargs)

        return read

    _replace(layer, os, "lstat", reading, follow=False)
    for name in ("stat", "access", "chdir", "statvfs", "getxattr", "listxattr"):
        _replace(layer, os, name, reading)

    def listing(old: Any) -> Any:
        def listed(path: Any, full: str) -> Any:
            with layer:
                if not layer.is_folder(full):
                    return old(layer.for_read(full))
                names = list(layer.listing(full))
            return [os.fsencode(n) for n in names] if isinstance(path, bytes) else names

        return listed

    def scanning(old: Any) -> Any:
        def scanned(path: Any, full: str) -> Any:
            with layer:
                if not layer.is_folder(full):
                    return old(layer.for_read(full))
                names = layer.listing(full)
            return _sibling("redirect_entries").Entries(path, names)

        return scanned

    def links(old: Any) -> Any:
        def link(path: Any, full: str) -> Any:
            with layer:
                target = old(layer.for_read(full))
            text = layer.lower(os.fsdecode(target))
            return os.fsencode(text) if isinstance(path, bytes) else text

        return link

    _replace(layer, os, "listdir", listing)
    _replace(layer, os, "scandir", scanning)
    _replace(layer, os, "readlink", links, follow=False)
    getcwd = os.getcwd

    @functools.wraps(getcwd)
    def current() -> str:
        return getcwd() if layer.busy else str(layer.lower(getcwd()))

    os.getcwd = current


def _redirect_writes(layer: Any) -> None:
    changes = _sibling("redirect_changes")
    for name in ("truncate", "utime", "chmod", "chown", "setxattr", "removexattr"):
        _replace(layer, os, name, functools.partial(changes.updating, layer))
    for name, change in (
        ("mkdir", changes.making),
        ("mkfifo", changes.making),
        ("remove", changes.removing),
        ("unlink", changes.removing),
        ("rmdir", changes.removing_folder),
        ("rename", changes.renaming),
        ("replace", changes.renaming),
        ("symlink", changes.linking_by_name),
        ("link", changes.linking),
    ):
        _replace(layer, os, name, functools.partial(change, layer), follow=False)
    if sys.version_info < (3, 11):
        _sibling("redirect_libraries").repair_old_pathlib()
