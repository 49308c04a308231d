"""Tells a limit of the machine, which torchdoctor's own process ran into, from a defect of ours."""

import errno
import mmap
import os
import threading
from collections.abc import Iterator

from torchdoctor.schema.errors import UsageError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# Of address space: what is imported, and the buffer and the stack of each thread of OpenBLAS.
_LEAST_BYTES = 256 << 20
_LEAST_BYTES_PER_CPU = 40 << 20

_PROCESSES = (
    "no process or thread could be started here: raise the limits on processes and on memory "
    "(ulimit -u, ulimit -v, those of the job or the container), or end other processes."
)
_MEMORY = (
    "there was no memory left for torchdoctor itself: raise its limit (ulimit -v, that of the job "
    "or the container), or end other processes."
)
_FILES = "too many files are open: raise the limit (ulimit -n)."
_BY_NUMBER = {
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: _MEMORY,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
}


def check_address_space() -> None:
    """Raise UsageError where a limit leaves too little: OpenBLAS would end us with exit code 1."""
    if resource is None or resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    try:
        mmap.mmap(-1, _LEAST_BYTES + _LEAST_BYTES_PER_CPU * (os.cpu_count() or 1)).close()
    except OSError:
        raise UsageError(_MEMORY) from None


def limit_reached(error: BaseException) -> str | None:
    """Return what to do where a limit ended us; None: something else did."""
    for cause in _causes(error):
        if isinstance(cause, MemoryError):
            return _MEMORY
        if isinstance(cause, OSError) and cause.errno in _BY_NUMBER:
            return _BY_NUMBER[cause.errno]
        # The loader's own words, of a library that did not fit; Python's, of a thread.
        if isinstance(cause, ImportError) and "failed to map segment" in str(cause):
            return _MEMORY
        if isinstance(cause, RuntimeError) and "start new thread" in str(cause):
            return _PROCESSES
        # OpenBLAS, which NumPy brings, sends itself a SIGINT where it can start no thread.
        if isinstance(cause, KeyboardInterrupt) and not _thread_starts():
            return _PROCESSES
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _thread_starts() -> bool:
    try:
        threading.Thread(target=int).start()
    except (RuntimeError, MemoryError):
        return False
    return True
