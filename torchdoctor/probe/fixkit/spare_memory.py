"""Memory for more loader workers (Linux; elsewhere nothing is known)."""

import os

from ..reasons import reason

_CGROUP = "/sys/fs/cgroup"


def lacking(workers, ready_bytes):
    """Return why more workers may need more memory than there is, as a reason; None: they fit.

    Each may get a copy of all that this process has; `ready_bytes`: in shared memory.
    """
    own_bytes = _field("/proc/self/status", "RssAnon") or 0
    needed = workers * own_bytes + ready_bytes
    available = available_bytes()
    if available is not None and needed > available:
        figures = {"needed_gb": needed / 1e9, "free_gb": available / 1e9}
        return reason("no-memory-for-workers", workers=workers, **figures)
    shared = _shared_bytes()
    if shared is not None and ready_bytes > shared:
        return reason("no-shared-memory", ready_gb=ready_bytes / 1e9, free_gb=shared / 1e9)
    return None


def available_bytes():
    """Return the memory left, of the machine or of the container; None: not known."""
    figures = [_field("/proc/meminfo", "MemAvailable"), _left_of_container()]
    return min((value for value in figures if value is not None), default=None)


def _field(path, name):
    """Return a figure of a file that says "name:  1234 kB", in bytes; None: it does not."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(name + ":"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _left_of_container():
    """Return what is left of a container's own control group (version 2)."""
    try:
        with open(os.path.join(_CGROUP, "memory.max"), encoding="ascii") as file:
            limit = int(file.read())  # "max": there is none
        with open(os.path.join(_CGROUP, "memory.current"), encoding="ascii") as file:
            return max(limit - int(file.read()), 0)
    except (OSError, ValueError):
        return None


def _shared_bytes():
    try:
        room = os.statvfs("/dev/shm")
        return room.f_bavail * room.f_frsize
    except OSError:
        return None
