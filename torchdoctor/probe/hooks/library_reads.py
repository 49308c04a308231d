"""Reads that are more than opening a file: fsspec's remote files, pandas' tables in text.

Rows of the same log as `file_reads`; only in launches that are not timed.
"""

import functools
import os
import time
from importlib.util import find_spec

from .. import places
from ..wrapping import wrap

REMOTE, TABLE, AVAILABLE = "u", "p", "a"

LOCAL_PROTOCOLS = frozenset(
    (
        *("", "abstract", "file", "local", "memory", "data", "dir", "zip", "tar", "libarchive"),
        *("reference", "cached", "blockcache", "filecache", "simplecache", "generic", "alluxiofs"),
    )
)
TABLE_READERS = ("read_csv", "read_table", "read_json", "read_excel")
_OPTIONAL = ("fsspec", "pyarrow", "alluxiofs")


def protocol_of(filesystem):
    """Return "s3", "https": the name that a file system's URLs begin with."""
    protocol = getattr(filesystem, "protocol", "")
    return protocol if isinstance(protocol, str) else next(iter(protocol), "")


def available():
    """Return the libraries that the storage fixes need and that are installed here."""
    return [name for name in _OPTIONAL if find_spec(name) is not None]


def install(reads, watch):
    """Note remote files and tables in `reads`, a `file_reads.FileReads`."""
    watch.when_imported("fsspec", lambda module: _fsspec(reads, module))
    watch.when_imported("pandas", lambda module: _pandas(reads, module))


def _fsspec(reads, fsspec):
    def make(old):
        def open(self, path, mode="rb", *args, **kwargs):
            protocol = protocol_of(self)
            if protocol not in LOCAL_PROTOCOLS and "r" in mode and "b" in mode:
                reads.note(REMOTE, "%s %s %s%s" % (reads.phase(), protocol, path, _line()))
            return old(self, path, mode, *args, **kwargs)

        return open

    wrap(fsspec.AbstractFileSystem, "open", make)


def _pandas(reads, pandas):
    for name in TABLE_READERS:
        wrap(pandas, name, functools.partial(_timed, reads, name))


def _timed(reads, name, old):
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


def _line():
    """Return the user's line that reads, behind what no path holds; "" where none does."""
    where = places.here()
    return "" if where is None else "\0%d %s" % (where["line"], where["file"])
