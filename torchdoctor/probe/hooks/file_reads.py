"""The files that the program opens to read, by an audit hook; only in launches not timed.

A row of `files-<pid>.log` is a letter, a tab and a text, mostly a path: one write call each, so
that a kill loses none. fsspec's remote files and pandas' tables have rows of their own.
"""

import functools
import os
import random
import sys
import sysconfig
import time
from importlib.util import find_spec

from .. import places, step_log
from ..measure import page_cache
from ..wrapping import wrap

LOADER = "l"
WORKER = "w"
TRAINING = "t"
SETUP = "s"
HELD = "h"
C_READER = "c"
REMOTE = "u"
TABLE = "p"
AVAILABLE = "a"
PAGES = "k"  # the row is "SHARE SIZE PATH": what of a file was cached before it was read

_MOST_ROWS = 200_000
# A look takes tens of microseconds, which the median of the samples' times may not show.
_LOOKED_AT, _MOST_OPENED = 0.25, 512  # of the files that training opens, in each process
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CODE = (".py", ".pyc", ".so", ".pyi", ".pth")
# Libraries that open files in C or C++, where no audit event tells of it.
_C_READERS = (
    "cv2",
    "h5py",
    "lmdb",
    "netCDF4",
    "pyarrow",
    "rasterio",
    "tables",
    "torchvision.io",
    "torchcodec",
    "turbojpeg",
    "nvidia.dali",
    "decord",
    "av",
    "soundfile",
    "tensorflow",
)
_SYSTEM = ("/proc/", "/sys/", "/etc/", "/usr/", "/lib/", "/lib64/", "/run/", "/var/lib/")
_IN_LOADER = frozenset((step_log.FETCH_BEGIN, step_log.LOADER_START_BEGIN))
LOCAL_PROTOCOLS = frozenset(
    (
        "",
        "abstract",
        "file",
        "local",
        "memory",
        "data",
        "dir",
        "zip",
        "tar",
        "libarchive",
        "reference",
        "cached",
        "blockcache",
        "filecache",
        "simplecache",
        "generic",
        "alluxiofs",
    )
)
TABLE_READERS = ("read_csv", "read_table", "read_json", "read_excel")
_OPTIONAL = ("fsspec", "pyarrow", "alluxiofs")  # what the storage fixes need


class FileReads:
    """The log of one process."""

    def __init__(self, session):
        self._session = session
        own_folders = [
            session.channel,
            sys.prefix,
            sys.base_prefix,
            *sysconfig.get_paths().values(),
        ]
        own_folders = {os.path.realpath(path).rstrip(os.sep) + os.sep for path in own_folders}
        self._foreign = (*_SYSTEM, *(own_folders - {os.sep}))
        self._busy = False
        self.forget()

    def forget(self):
        """Begin anew: a forked child writes a file of its own."""
        self._file, self._rows, self._held, self._opened = None, 0, set(), set()
        self._lots = random.Random(0)

    def hook(self, event, args):
        """Hear audit events; never raise, which would forbid what was heard of."""
        if event != "open" or self._busy:
            return
        self._busy = True
        try:
            path, _, flags = args
            if isinstance(path, (str, bytes, os.PathLike)) and not (flags or 0) & _WRITING:
                self._opened_to_read(os.path.abspath(os.fsdecode(path)))
        except Exception as error:
            self._session.fail("files", error)
        finally:
            self._busy = False

    def facts(self):
        """Return {}: a moment to note what is kept open, and who reads in C."""
        session = self._session
        if not session.learned:
            return {}
        self._busy = True
        try:
            if not self._held:
                for name in filter(find_spec, _OPTIONAL):
                    self.note(AVAILABLE, name)
            for name in _open_or_mapped() - self._held:
                self._held.add(name)
                if self._is_data(name):
                    self.note(HELD, name)
                    if name not in self._opened:
                        self._look(name)
            for name in _C_READERS:
                if name in sys.modules and name not in self._held:
                    self._held.add(name)
                    self.note(C_READER, name)
        finally:
            self._busy = False
        return {}

    def _opened_to_read(self, name):
        if not self._is_data(name):
            return
        phase = self.phase()
        self.note(phase, name)
        if phase != SETUP and name not in self._opened and len(self._opened) < _MOST_OPENED:
            # By lot: where a sample opens four files, every fourth is of one kind.
            if not self._opened or self._lots.random() < _LOOKED_AT:
                self._look(name)
            self._opened.add(name)

    def _look(self, name):
        """Note what of a file is in the page cache, before training has read of it."""
        try:
            cached = page_cache.share_of(name)
        except OSError:
            return
        if cached is not None:
            self.note(PAGES, "%.4f %d %s" % (*cached, name))

    def _is_data(self, name):
        code = name.endswith(_CODE) or ".so." in name
        return not code and not name.startswith(self._foreign)

    def phase(self):
        """Return the letter of what the program does now."""
        session = self._session
        if session.is_loader_worker():
            return WORKER
        in_loop = TRAINING if session.learned else SETUP
        return LOADER if session.log.last_code in _IN_LOADER else in_loop

    def note(self, letter, text):
        """Append a row; never raises."""
        if self._rows >= _MOST_ROWS or "\n" in text:
            return
        self._rows += 1
        try:
            if self._file is None:
                path = os.path.join(self._session.channel, "files-%d.log" % os.getpid())
                self._file = step_log.open_to_append(path)
            os.write(self._file, os.fsencode("%s\t%s\n" % (letter, text)))
        except Exception as error:
            self._session.fail("files", error)


def _open_or_mapped():
    """Return regular files that this process keeps open to read, or mapped; Linux only."""
    names = set()
    try:
        # Not 0, as of `python train.py < answers.txt`: no data of a loader's.
        for number in filter(int, os.listdir("/proc/self/fd")):
            try:
                name = os.readlink("/proc/self/fd/" + number)
                with open("/proc/self/fdinfo/" + number, "rb") as file:
                    flags = next(line for line in file if line.startswith(b"flags:"))
            except (OSError, StopIteration):
                continue
            if name.startswith("/") and not int(flags.split()[1], 8) & (os.O_WRONLY | os.O_RDWR):
                names.add(name)
        with open("/proc/self/maps", "rb") as file:
            mapped = [line[line.find(b"/") :].rstrip(b"\n") for line in file if line.find(b"/") > 0]
            names.update(map(os.fsdecode, mapped))
    except OSError:
        pass
    return {name for name in names if not name.endswith(" (deleted)")}


def protocol_of(filesystem):
    """Return "s3", "https": the name that a file system's URLs begin with."""
    protocol = getattr(filesystem, "protocol", "")
    return protocol if isinstance(protocol, str) else next(iter(protocol), "")


def _note_remote(reads, fsspec):
    def make(old):
        def open(self, path, mode="rb", *args, **kwargs):
            protocol = protocol_of(self)
            if protocol not in LOCAL_PROTOCOLS and "r" in mode and "b" in mode:
                reads.note(REMOTE, "%s %s %s%s" % (reads.phase(), protocol, path, _line()))
            return old(self, path, mode, *args, **kwargs)

        return open

    wrap(fsspec.AbstractFileSystem, "open", make)


def _note_tables(reads, pandas):
    def make(name, old):
        def read(*args, **kwargs):
            began = time.perf_counter()
            result = old(*args, **kwargs)
            path = args[0] if args else kwargs.get("filepath_or_buffer", kwargs.get("io"))
            if isinstance(path, (str, os.PathLike)):
                took = time.perf_counter() - began
                row = (reads.phase(), name, took, os.fspath(path), _line())
                reads.note(TABLE, "%s %s %.6f %s%s" % row)
            return result

        return read

    for name in TABLE_READERS:
        wrap(pandas, name, functools.partial(make, name))


def _line():
    """Return the user's line that reads, behind what no path holds; "" where none does."""
    where = places.here()
    return "" if where is None else "\0%d %s" % (where["line"], where["file"])


def install(session, watch):
    """Listen, where the plan wants it; `watch` calls back when a library is imported."""
    if not session.plan.get("watch_files"):
        return
    reads = FileReads(session)
    session.registries.append(reads)
    session.forget.append(reads.forget)
    sys.addaudithook(reads.hook)
    watch.when_imported("fsspec", lambda module: _note_remote(reads, module))
    watch.when_imported("pandas", lambda module: _note_tables(reads, module))
