"""Without an overlay, Python's and torch's writers go to a scratch folder and read back from it.

`install` puts a function of ours in the place of each of `os` that takes a path, and of `open`. A
call of it goes on in this order:

1. A call that names no path (an open file, a descriptor of a folder) goes to the real function.
2. The path is made absolute; one that is exempt goes to the real function as well.
3. Else a *change* (`_open`, `_read`, ... below) calls the real function with the file of the
   scratch layer that stands for the path: see `scratch_layer.py`.
4. An error names the path as the program wrote it.

Libraries that open files in C (sqlite3, torch, safetensors) are given the layer's files instead.
What gets past all of this (other C++ libraries, other programs) Landlock denies.
"""

import builtins
import errno
import functools
import io
import os
import shutil
import stat
import sys
from urllib.parse import quote, unquote

_FIRST = ("file", "path", "src")  # names of the first argument, where it is given by name
_FOLDER_DESCRIPTORS = ("dir_fd", "src_dir_fd", "dst_dir_fd")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_WRITERS_IN_C = (  # of torch and safetensors: which argument is a path, and whether it is written
    ("save", 1, "f", True),
    ("load", 0, "f", False),
    ("serialize_file", 1, "filename", True),
    ("safe_open", 0, "filename", False),
)


def install(layer, watch):
    """Redirect all writes of this process, but for exempt paths, to the layer's scratch folder."""
    # The import system writes these by functions that nobody can redirect.
    sys.dont_write_bytecode = True
    # Compilers are other programs and must find what they are told to compile.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(layer.scratch, ".inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(layer.scratch, ".triton"))
    _redirect_os(layer)
    _replace(layer, io, "open", _open)
    builtins.open = io.open
    if sys.version_info < (3, 11):
        watch.when_imported("pathlib", _repair_old_pathlib)
    # With descriptors of folders nobody could tell which file is meant.
    shutil._use_fd_functions = False
    watch.when_imported("sqlite3", functools.partial(_sqlite, layer))
    for library in ("torch", "safetensors"):
        watch.when_imported(library, functools.partial(_writers_in_c, layer))


def _redirect_os(layer):
    """Replace the functions of `os`: what each does instead, and whether a link is followed."""
    changes = (
        ("open", _open_descriptor, True),
        ("stat access chdir statvfs getxattr listxattr", _read, True),
        ("lstat", _read, False),
        ("listdir", _list, True),
        ("scandir", _scan, True),
        ("readlink", _read_link, False),
        ("truncate utime chmod chown setxattr removexattr", _update, True),
        ("mkdir mkfifo", _make, False),
        ("remove unlink", _remove, False),
        ("rmdir", _remove_folder, False),
        ("rename replace", _rename, False),
        ("link", _link, False),
        ("symlink", _link_by_name, False),
    )
    for names, change, follow in changes:
        for name in names.split():
            _replace(layer, os, name, change, follow)
    getcwd = os.getcwd

    @functools.wraps(getcwd)
    def program_folder():
        folder = getcwd()
        return folder if layer.busy else layer.lower(folder)

    os.getcwd = program_folder


def _replace(layer, owner, name, change, follow=True):
    """Let owner.name do change(layer, old, path, full, ...), but for exempt paths and descriptors.

    `path` is as the program wrote it, `full` absolute; `follow`: the link's target is meant.
    """
    old = getattr(owner, name, None)
    if old is None:
        return

    @functools.wraps(old)
    def function(*args, **kwargs):
        if args:
            path, args = args[0], args[1:]
        else:
            key = next((key for key in _FIRST if key in kwargs), None)
            path = kwargs.pop(key) if key is not None else "."
        if layer.busy or not _names_path(path, kwargs):
            return old(path, *args, **kwargs)
        try:
            with layer:
                full = layer.name(path, follow and kwargs.get("follow_symlinks", True))
                if layer.is_exempt(full):
                    return old(path, *args, **kwargs)
                return change(layer, old, path, full, *args, **kwargs)
        except OSError as error:
            _show_program_paths(layer, error, path, args)
            trace = error.__traceback__
            error.__traceback__ = trace.tb_next if trace is not None else None
            raise

    setattr(owner, name, function)
    # shutil looks its functions up there.
    for supporting in (os.supports_fd, os.supports_follow_symlinks):
        if old in supporting:
            supporting.add(function)


def _names_path(path, kwargs):
    """Return whether a call says by its path alone which file is meant.

    An integer is an open file, and a relative path is meant from `dir_fd`. An opener opens what it
    likes (tempfile: not even this path), through os.open.
    """
    if path is None or isinstance(path, int) or kwargs.get("opener") is not None:
        return False
    return all(kwargs.get(key) is None for key in _FOLDER_DESCRIPTORS)


def _show_program_paths(layer, error, path, args):
    """Let an error name files as the program wrote them, not as they stand in the layer."""
    paths = [path]
    if args and isinstance(args[0], (str, bytes, os.PathLike)):  # of rename, link, symlink
        paths.append(args[0])
    written = {}
    with layer:
        for text in reversed(paths):  # the first has the last word where both are the same file
            for follow in (True, False):
                full = layer.name(text, follow)
                written[full] = os.fspath(text)
                written[layer.upper(full)] = os.fspath(text)
    for field in ("filename", "filename2"):
        name = getattr(error, field, None)
        if isinstance(name, str):
            setattr(error, field, written.get(name, layer.lower(name)))


# Changes: each calls `old`, the real function, with a file of the layer. Called within the layer.


def _open(layer, old, path, full, mode="r", *args, **kwargs):
    if not any(letter in mode for letter in "wax+"):
        return old(layer.for_read(full), mode, *args, **kwargs)
    target = _to_write(layer, path, full, keep="w" not in mode, new="x" in mode)
    return old(target, mode, *args, **kwargs)


def _open_descriptor(layer, old, path, full, flags, *args, **kwargs):
    unnamed = getattr(os, "O_TMPFILE", 0)
    if unnamed and flags & unnamed == unnamed:
        layer.make_folders(full, full)
        return old(layer.upper(full), flags, *args, **kwargs)
    if not flags & _WRITING:
        return old(layer.for_read(full), flags, *args, **kwargs)
    create = flags & os.O_CREAT
    if not create:
        _must_exist(layer, path, full)
    new = create and flags & os.O_EXCL
    target = _to_write(layer, path, full, keep=not flags & os.O_TRUNC, new=new)
    return old(target, flags, *args, **kwargs)


def _to_write(layer, path, full, keep, new):
    """Return the file to write; `keep`: with its content, `new`: there must be none yet."""
    if _is_special(layer.for_read(full)):
        return full
    if new:
        _must_not_exist(layer, path, full)
    if layer.is_folder(full):
        layer.fail(errno.EISDIR, path)
    return layer.for_write(full, keep)


def _is_special(name):
    """Return whether it is a pipe, socket or device: writing to it changes no file."""
    try:
        kind = os.stat(name).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))


def _must_exist(layer, path, full):
    if not layer.exists(full):
        layer.fail(errno.ENOENT, path)


def _must_not_exist(layer, path, full):
    if layer.exists(full):
        layer.fail(errno.EEXIST, path)


def _read(layer, old, path, full, *args, **kwargs):
    target = layer.for_read(full)
    # Untouched paths stay as they are written: relative, or ending in a slash.
    return old(path if target == full else target, *args, **kwargs)


def _list(layer, old, path, full):
    if not layer.is_folder(full):
        return old(layer.for_read(full))
    names = list(layer.listing(full))
    return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names


def _scan(layer, old, path, full):
    if not layer.is_folder(full):
        return old(layer.for_read(full))
    return _Entries(_Entry(path, name, file) for name, file in layer.listing(full).items())


def _read_link(layer, old, path, full):
    text = layer.lower(os.fsdecode(old(layer.for_read(full))))
    return os.fsencode(text) if isinstance(path, bytes) else text


def _update(layer, old, path, full, *args, **kwargs):
    _must_exist(layer, path, full)
    return old(layer.for_write(full, keep=True), *args, **kwargs)


def _make(layer, old, path, full, *args, **kwargs):
    _must_not_exist(layer, path, full)
    return old(layer.for_write(full, keep=False), *args, **kwargs)


def _remove(layer, old, path, full):
    _must_exist(layer, path, full)
    target = layer.for_read(full)
    if os.path.isdir(target) and not os.path.islink(target):
        layer.fail(errno.EISDIR, path)
    if os.path.lexists(layer.upper(full)):
        old(layer.upper(full))
    layer.remove(full)


def _remove_folder(layer, old, path, full):
    _must_exist(layer, path, full)
    if not layer.is_folder(full):
        layer.fail(errno.ENOTDIR, path)
    if layer.listing(full):
        layer.fail(errno.ENOTEMPTY, path)
    if os.path.isdir(layer.upper(full)):
        old(layer.upper(full))
    layer.remove(full)


def _rename(layer, old, path, full, dst, **kwargs):
    """Rename, or replace: all that moves is copied into the layer first."""
    _must_exist(layer, path, full)
    target = layer.name(dst)
    file = _new_file(layer, target)
    if layer.is_folder(target) and layer.listing(target):
        layer.fail(errno.ENOTEMPTY, dst)
    old(layer.copy_tree(full), file, **kwargs)
    layer.remove(full)


def _link(layer, old, path, full, dst, **kwargs):
    """Link to a copy, or writing to one would change the real file."""
    _must_exist(layer, path, full)
    target = layer.name(dst)
    _must_not_exist(layer, dst, target)
    source = layer.for_write(full, keep=True)
    old(source, _new_file(layer, target), **kwargs)


def _new_file(layer, target):
    """Return the file to make for a second path: an exempt one is really made.

    Of an exempt first path nobody asks here: its calls are not changed.
    """
    return target if layer.is_exempt(target) else layer.for_write(target, keep=False)


def _link_by_name(layer, old, path, full, dst, *args, **kwargs):
    target = layer.name(dst)
    if layer.is_exempt(target):
        return old(path, dst, *args, **kwargs)
    _must_not_exist(layer, dst, target)
    # Kept as it is written: links are resolved by the layer, never by the kernel.
    return old(path, layer.for_write(target, keep=False), *args, **kwargs)


class _Entry:
    """Like os.DirEntry, with the path that the program knows."""

    def __init__(self, folder, name, target):
        self.name = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path = os.path.join(os.fspath(folder), self.name)
        self.stat = functools.partial(os.stat, target)
        self.is_symlink = functools.partial(os.path.islink, target)
        self.is_dir = functools.partial(self._is, os.path.isdir, target)
        self.is_file = functools.partial(self._is, os.path.isfile, target)
        self.is_junction = lambda: False
        self.inode = lambda: os.lstat(target).st_ino

    def _is(self, kind, target, *, follow_symlinks=True):
        return kind(target) and (follow_symlinks or not os.path.islink(target))

    def __fspath__(self):
        return self.path

    def __repr__(self):
        return f"<DirEntry {self.name!r}>"


class _Entries(list):
    """An iterator and context manager, as scandir returns one."""

    def __iter__(self):
        return self

    def __next__(self):
        if not self:
            raise StopIteration
        return self.pop(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.clear()

    close = list.clear


# Libraries that open files in C: they are given the layer's file in place of the path.


def _sqlite(layer, sqlite3):
    for owner in (sqlite3, sqlite3.dbapi2):
        _wrap(owner, "connect", 0, "database", functools.partial(_database, layer))


def _database(layer, path):
    """Return what sqlite is to open: a database in memory stays, of a URI the path changes."""
    if path in ("", ":memory:"):
        return path
    if not isinstance(path, str) or not path.startswith("file:"):
        return _database_file(layer, path)
    name, mark, query = path[5:].partition("?")
    if not name or name.startswith(":memory:") or "mode=memory" in query:
        return path
    return "file:" + quote(os.fspath(_database_file(layer, unquote(name)))) + mark + query


def _database_file(layer, path):
    """Return a copy of a database; what is not written back to it yet lies beside it."""
    for suffix in ("-wal", "-journal"):
        beside = os.fsdecode(path) + suffix
        if os.path.exists(beside):
            _mapped(layer, beside, write=True, keep=True)
    return _mapped(layer, path, write=True, keep=True)


def _writers_in_c(layer, module):
    # safetensors' `torch` and `numpy` parts take these names from here when they are imported.
    for owner in {module, getattr(module, "serialization", module)}:
        for name, position, keyword, write in _WRITERS_IN_C:
            _wrap(owner, name, position, keyword, functools.partial(_mapped, layer, write=write))


def _wrap(owner, name, position, keyword, change):
    """Give owner.name, which is written in C, change(path) where it takes a path."""
    old = getattr(owner, name, None)
    if old is None:
        return

    @functools.wraps(old)
    def function(*args, **kwargs):
        if len(args) > position:
            args = (*args[:position], change(args[position]), *args[position + 1 :])
        elif keyword in kwargs:
            kwargs[keyword] = change(kwargs[keyword])
        return old(*args, **kwargs)

    setattr(owner, name, function)


def _mapped(layer, path, write, keep=False):
    """Return the file that stands for a path; anything that is no path as it is."""
    if layer.busy or not isinstance(path, (str, bytes, os.PathLike)):
        return path
    with layer:
        full = layer.name(path, follow=True)
        if layer.is_exempt(full):
            return path
        target = layer.for_write(full, keep) if write else layer.for_read(full)
        return path if target == full else target


def _repair_old_pathlib(pathlib):
    """Repair pathlib, which before Python 3.11 keeps the functions of `os` that it found.

    It keeps them in a class: one that is not written in C would be a method, of the class's object.
    """
    accessor = pathlib._NormalAccessor
    for name in vars(accessor).copy():
        if not name.startswith("_") and hasattr(os, name):
            setattr(accessor, name, staticmethod(getattr(os, name)))
    accessor.open = staticmethod(io.open)
