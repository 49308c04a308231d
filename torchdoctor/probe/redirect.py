"""Without an overlay, Python's and torch's writers go to a scratch folder and read back from it.

What gets past it (C++ libraries, other programs) Landlock denies. A path's *upper* is
scratch/<absolute path>. What was removed has a mark below scratch/.gone, on disk for the program's
children, for good: an upper wins over it, and what a removed folder held stays hidden.
"""

import builtins
import errno
import functools
import io
import os
import shutil
import stat
import sys
import threading
from urllib.parse import quote, unquote

_FIRST = ("file", "path", "src")  # names of the first argument, where it is given by name
_FOLDER_DESCRIPTORS = ("dir_fd", "src_dir_fd", "dst_dir_fd")
_MOST_LINKS = 40  # one after the other; a loop of links ends there, as in the kernel
_SYSTEM = ("/dev", "/proc", "/sys")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_WRITERS_IN_C = (  # of torch and safetensors: which argument is a path, and whether it is written
    ("save", 1, "f", True),
    ("load", 0, "f", False),
    ("serialize_file", 1, "filename", True),
    ("safe_open", 0, "filename", False),
)


def install(scratch, direct, watch):
    """Redirect all writes of this process, but for those to `direct`, to the launch's `scratch`."""
    layer = _Layer(scratch, direct)
    # The import system writes these by functions that nobody can redirect.
    sys.dont_write_bytecode = True
    # Compilers are other programs and must find what they are told to compile.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(layer.scratch, ".inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(layer.scratch, ".triton"))
    for names, change, follow in _CHANGES:
        for name in names.split():
            _replace(layer, os, name, change, follow)
    _replace(layer, io, "open", _open)
    builtins.open = io.open
    getcwd = os.getcwd
    os.getcwd = functools.wraps(getcwd)(lambda: getcwd() if layer.busy else layer.lower(getcwd()))
    if sys.version_info < (3, 11):
        watch.when_imported("pathlib", _repair_old_pathlib)
    # With descriptors of folders nobody could tell which file is meant.
    shutil._use_fd_functions = False
    watch.when_imported("sqlite3", functools.partial(_sqlite, layer))
    for library in ("torch", "safetensors"):
        watch.when_imported(library, functools.partial(_writers_in_c, layer))


class _Layer:
    """The files that stand for others, over the real tree; `exempt` ones are written directly."""

    def __init__(self, scratch, exempt):
        self.scratch = os.path.realpath(scratch)
        self._gone = os.path.join(self.scratch, ".gone")
        folders = [self.scratch, *map(os.path.realpath, exempt), *_SYSTEM]
        self._exempt = tuple(folder.rstrip(os.sep) + os.sep for folder in folders)
        # Sockets are bound there by name, in C. (tempfile itself must not be imported yet: it
        # keeps the `os.unlink` that it finds.)
        temporary = os.environ.get("TMPDIR") or "/tmp"
        self._sockets = os.path.join(os.path.realpath(temporary), "pymp-")
        self._busy = threading.local()

    def __enter__(self):
        """Let this thread's calls go to the real files until left: the layer works on itself."""
        self._busy.depth = getattr(self._busy, "depth", 0) + 1

    def __exit__(self, *_):
        self._busy.depth -= 1

    @property
    def busy(self):
        return getattr(self._busy, "depth", 0) > 0

    def name(self, path, follow=False):
        """Return the absolute path, links in its folders (`follow`: and its last part) resolved."""
        text = os.path.abspath(os.path.join(self.lower(os.getcwd()), os.fsdecode(path)))
        folder, last = os.path.split(text)
        name = os.path.join(self._resolve(folder), last) if last else text
        return self._resolve(name) if follow else name

    def _resolve(self, path):
        name = os.sep
        parts = path.split(os.sep)[::-1]
        links = 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                name = os.path.dirname(name)
                continue
            below = os.path.join(name, part)
            target = below if self.is_exempt(below) else self.for_read(below)
            if not os.path.islink(target) or links >= _MOST_LINKS:
                name = below
                continue
            links += 1
            text = self.lower(os.readlink(target))
            name = os.sep if os.path.isabs(text) else name
            parts += text.split(os.sep)[::-1]
        return name

    def is_exempt(self, name):
        return (name + os.sep).startswith(self._exempt) or name.startswith(self._sockets)

    def upper(self, name):
        return self.scratch + name

    def lower(self, path):
        """Return the path that an upper stands for; any other path as it is."""
        if path == self.scratch:
            return os.sep
        inside = path.startswith(self.scratch + os.sep)
        return path[len(self.scratch) :] if inside else path

    def is_gone(self, name):
        """Return whether the real file, or a folder around it, was removed."""
        if not os.path.isdir(self._gone):
            return False
        while name and name != os.path.dirname(name):
            if os.path.lexists(self._mark(name)):
                return True
            name = os.path.dirname(name)
        return False

    def exists(self, name):
        return os.path.lexists(self.for_read(name))

    def is_folder(self, name):
        return os.path.isdir(self.for_read(name))

    def for_read(self, name):
        """Return the file that a reader gets; one that does not exist where none is to be seen."""
        upper = self.upper(name)
        return upper if os.path.lexists(upper) or self.is_gone(name) else name

    def for_write(self, name, keep):
        """Return the file that a writer gets, its folder made; `keep`: with its content."""
        upper = self.upper(name)
        self.make_folders(os.path.dirname(name), name)
        if keep and not os.path.lexists(upper) and self.exists(name):
            if os.path.isdir(name) and not os.path.islink(name):
                os.makedirs(upper, exist_ok=True)
            else:
                shutil.copy2(name, upper, follow_symlinks=False)
        return upper

    def make_folders(self, folder, wanted_by):
        """Make the upper of a folder that the program sees."""
        if not self.is_folder(folder):
            _fail(errno.ENOENT, wanted_by)
        os.makedirs(self.upper(folder), exist_ok=True)

    def listing(self, name):
        """Return names in a folder as the program sees it, with the files that stand for them."""
        upper = self.upper(name)
        files = {}
        if os.path.isdir(name) and not self.is_gone(name):
            for entry in os.listdir(name):
                path = os.path.join(name, entry)
                if path != self.scratch and not self.is_gone(path):
                    files[entry] = path
        if os.path.isdir(upper):
            files.update({entry: os.path.join(upper, entry) for entry in os.listdir(upper)})
            if upper == self.scratch:
                files.pop(".gone", None)
        return files

    def remove(self, name):
        """Hide the real file; what is in the layer was removed by the caller."""
        if os.path.lexists(name):
            mark = self._mark(name)
            os.makedirs(os.path.dirname(mark), exist_ok=True)
            with open(mark, "wb"):
                pass

    def copy_tree(self, name):
        """Copy all that the program sees at and below a path into the layer; return its upper."""
        upper = self.for_write(name, keep=True)
        if os.path.isdir(upper) and not os.path.islink(upper):
            for entry in self.listing(name):
                self.copy_tree(os.path.join(name, entry))
        return upper

    def _mark(self, name):
        return self._gone + name + ".mark"


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
        # A relative path is meant from `dir_fd`, an integer is an open file, and an opener opens
        # what it likes (tempfile: not even this path), through os.open.
        direct = layer.busy or isinstance(path, int) or path is None
        direct = direct or kwargs.get("opener") is not None
        if direct or any(kwargs.get(key) is not None for key in _FOLDER_DESCRIPTORS):
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
    for known in (os.supports_fd, os.supports_follow_symlinks):
        if old in known:
            known.add(function)


def _show_program_paths(layer, error, path, args):
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


def _fail(number, path):
    raise OSError(number, os.strerror(number), os.fspath(path))


def _must_exist(layer, path, full):
    if not layer.exists(full):
        _fail(errno.ENOENT, path)


def _must_not_exist(layer, path, full):
    if layer.exists(full):
        _fail(errno.EEXIST, path)


def _target(layer, path, full, write, keep, new):
    if not write:
        return layer.for_read(full)
    if _is_special(layer.for_read(full)):
        return full
    if new:
        _must_not_exist(layer, path, full)
    if layer.is_folder(full):
        _fail(errno.EISDIR, path)
    return layer.for_write(full, keep)


def _is_special(name):
    """Return whether it is a pipe, socket or device: writing to it changes no file."""
    try:
        kind = os.stat(name).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))


def _open(layer, old, path, full, mode="r", *args, **kwargs):
    write = any(letter in mode for letter in "wax+")
    target = _target(layer, path, full, write, "w" not in mode, "x" in mode)
    return old(target, mode, *args, **kwargs)


def _open_descriptor(layer, old, path, full, flags, *args, **kwargs):
    unnamed = getattr(os, "O_TMPFILE", 0)
    if unnamed and flags & unnamed == unnamed:
        layer.make_folders(full, full)
        return old(layer.upper(full), flags, *args, **kwargs)
    write = flags & _WRITING
    create = flags & os.O_CREAT
    if write and not create:
        _must_exist(layer, path, full)
    target = _target(layer, path, full, write, not flags & os.O_TRUNC, create and flags & os.O_EXCL)
    return old(target, flags, *args, **kwargs)


def _read(layer, old, path, full, *args, **kwargs):
    target = layer.for_read(full)
    # Untouched paths stay as they are written: relative, or ending in a slash.
    return old(path if target == full else target, *args, **kwargs)


def _list(layer, old, path, full):
    if not layer.is_folder(full):
        return old(layer.for_read(full))
    names = layer.listing(full)
    return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)


def _scan(layer, old, path, full):
    if not layer.is_folder(full):
        return old(layer.for_read(full))
    return _Entries(_Entry(path, *named) for named in layer.listing(full).items())


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
        _fail(errno.EISDIR, path)
    if os.path.lexists(layer.upper(full)):
        old(layer.upper(full))
    layer.remove(full)


def _remove_folder(layer, old, path, full):
    _must_exist(layer, path, full)
    if not layer.is_folder(full):
        _fail(errno.ENOTDIR, path)
    if layer.listing(full):
        _fail(errno.ENOTEMPTY, path)
    if os.path.isdir(layer.upper(full)):
        old(layer.upper(full))
    layer.remove(full)


def _rename(layer, old, path, full, dst, **kwargs):
    """Rename, or replace: all that moves is copied into the layer first."""
    _must_exist(layer, path, full)
    target = layer.name(dst)
    # To an exempt folder it really moves; from one, nobody asks here.
    to = target if layer.is_exempt(target) else layer.for_write(target, keep=False)
    if layer.is_folder(target) and layer.listing(target):
        _fail(errno.ENOTEMPTY, dst)
    old(layer.copy_tree(full), to, **kwargs)
    layer.remove(full)


def _link(layer, old, path, full, dst, **kwargs):
    """Link to a copy, or writing to one would change the real file."""
    _must_exist(layer, path, full)
    target = layer.name(dst)
    _must_not_exist(layer, dst, target)
    source = layer.for_write(full, keep=True)
    to = target if layer.is_exempt(target) else layer.for_write(target, keep=False)
    old(source, to, **kwargs)


def _link_by_name(layer, old, path, full, dst, *args, **kwargs):
    target = layer.name(dst)
    if layer.is_exempt(target):
        return old(path, dst, *args, **kwargs)
    _must_not_exist(layer, dst, target)
    # Kept as it is written: links are resolved by the layer, never by the kernel.
    return old(path, layer.for_write(target, keep=False), *args, **kwargs)


_CHANGES = (  # functions of os, what they do, and whether a link is followed
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


def _sqlite(layer, sqlite3):
    def change(path):
        if path in ("", ":memory:"):
            return path
        if isinstance(path, str) and path.startswith("file:"):
            name, mark, query = path[5:].partition("?")
            if not name or name.startswith(":memory:") or "mode=memory" in query:
                return path
            return "file:" + quote(os.fspath(database(unquote(name)))) + mark + query
        return database(path)

    def database(path):
        for suffix in ("-wal", "-journal"):
            beside = os.fsdecode(path) + suffix
            if os.path.exists(beside):
                _mapped(layer, beside, write=True, keep=True)
        return _mapped(layer, path, write=True, keep=True)

    for owner in (sqlite3, sqlite3.dbapi2):
        _wrap(owner, "connect", 0, "database", change)


def _writers_in_c(layer, module):
    # safetensors' `torch` and `numpy` parts take these names from here when they are imported.
    for owner in {module, getattr(module, "serialization", module)}:
        for name, position, keyword, write in _WRITERS_IN_C:
            _wrap(owner, name, position, keyword, lambda p, write=write: _mapped(layer, p, write))


def _repair_old_pathlib(pathlib):
    """Repair pathlib, which before Python 3.11 keeps the functions of `os` that it found.

    It keeps them in a class: one that is not written in C would be a method, of the class's object.
    """
    accessor = pathlib._NormalAccessor
    for name in vars(accessor).copy():
        if not name.startswith("_") and hasattr(os, name):
            setattr(accessor, name, staticmethod(getattr(os, name)))
    accessor.open = staticmethod(io.open)
