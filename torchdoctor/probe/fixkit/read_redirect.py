"""Lets a fix answer the program's reads from other files: `Program.redirect_reads`.

`open`, `io.open` and `os.open` are wrapped, and so all that goes through them (`numpy.load`,
`PIL.Image.open`, `torch.load`), but no library that opens files in C. A file opened for writing,
by an `opener`, by number, or from a folder's descriptor is never touched.
"""

import _io
import builtins
import functools
import io
import os
import sys
import threading

_busy = threading.local()
_functions: list = []  # (program, function)
_NOT_READING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NOT_READING |= getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", 0)


def add(program, function):
    """Ask function(path: str) for the file to open instead of an absolute path, or None."""
    if not _functions:
        _install()
    _functions.append((program, function))


def _instead(path):
    """Return the file to open instead; None: the one that was asked for."""
    if getattr(_busy, "depth", 0) or not isinstance(path, (str, bytes, os.PathLike)):
        return None
    _busy.depth = 1
    try:
        full = os.path.abspath(os.fsdecode(path))
        for program, function in _functions:
            if program.state in ("failed", "refused"):
                continue
            other = program.guarded(function, full)
            if other is not None:
                return other
    except Exception:
        return None  # a path that no file can have: the real `open` says what is wrong with it
    finally:
        _busy.depth = 0
    return None


def _install():
    real_open = io.open
    real_os_open = os.open

    def other_or(path, wanted, open_it):
        """Open what is read instead of a path; else, or where that is gone, the path itself."""
        other = _instead(path) if wanted else None
        if other is not None:
            try:
                return open_it(other)
            except OSError:
                pass
        return open_it(path)

    @functools.wraps(real_open)
    def open(file, mode="r", *args, **kwargs):
        def open_it(path):
            opened = real_open(path, mode, *args, **kwargs)
            if path is not file:
                _name_as_asked(opened, file)
            return opened

        read = isinstance(mode, str) and not any(letter in mode for letter in "wax+")
        opener = kwargs.get("opener") or (len(args) > 5 and args[5])
        return other_or(file, read and not opener, open_it)

    @functools.wraps(real_os_open)
    def os_open(path, flags, *args, **kwargs):
        read = not flags & _NOT_READING and kwargs.get("dir_fd") is None and len(args) < 2
        return other_or(path, read, lambda path: real_os_open(path, flags, *args, **kwargs))

    _replace(real_os_open, os_open, open)


def _replace(real_os_open, os_open, open):
    """Put both functions wherever the real ones are looked up."""
    # `_io` too: a pickled `open` is looked up there.
    for owner in (io, builtins, _io):
        owner.open = open
    os.open = os_open
    for functions in (os.supports_dir_fd, os.supports_fd):
        if real_os_open in functions:
            functions.add(os_open)
    if "tarfile" in sys.modules:
        sys.modules["tarfile"].bltn_open = open
    # Before Python 3.11 pathlib keeps the function that it found.
    accessor = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)
    if hasattr(accessor, "open"):
        accessor.open = staticmethod(open)


def _name_as_asked(opened, path):
    raw = getattr(opened, "buffer", opened)
    try:
        getattr(raw, "raw", raw).name = path
    except AttributeError:
        pass
