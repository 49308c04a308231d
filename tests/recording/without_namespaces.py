"""Runs a command as in a container that forbids mounts and namespaces: `in_container`.

A process in a Landlock domain cannot mount, whatever the domain allows: this one allows the rest.
"""

import ctypes
import os
import struct
import sys
from collections.abc import Sequence

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ANY_VERSION = 1
MAKE_BLOCK_DEVICES, MOVE_BETWEEN_FOLDERS = 1 << 11, 1 << 13
NO_NEW_PRIVILEGES = 38


def version() -> int:
    """Return the version of Landlock in this kernel; below 1: there is none."""
    if sys.platform != "linux":
        return 0
    return ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, ANY_VERSION)


def in_container(command: Sequence[str]) -> list[str]:
    """Return the command that runs this command where nothing can be mounted."""
    return [sys.executable, __file__, *command]


def enter() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    rights = MAKE_BLOCK_DEVICES | (MOVE_BETWEEN_FOLDERS if version() > 1 else 0)
    rules = libc.syscall(CREATE_RULESET, struct.pack("=Q", rights), 8, 0)
    root = os.open("/", os.O_RDONLY)
    results = [
        libc.syscall(ADD_RULE, rules, 1, struct.pack("=Qi", rights, root), 0),
        libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        libc.syscall(RESTRICT_SELF, rules, 0),
    ]
    assert rules >= 0 and not any(results), os.strerror(ctypes.get_errno())


if __name__ == "__main__":
    enter()
    os.execvp(sys.argv[1], sys.argv[1:])
