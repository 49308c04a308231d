"""What a launched program prints: a plain file of bounded size, as nothing may read along.

A reader would take time of the CPUs that the program is measured on. So the program writes into a
file, and whoever watches the launch frees the middle of it on the disk.
"""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from torchdoctor.schema import secret_values

KEPT_BYTES = 5_000_000  # at the beginning, and at the end
_SLACK_BYTES = 4_000_000  # that are left before the middle is freed again
_BLOCK = 4096
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # of fallocate(2)


class KeptOutput:
    """The output file of one launch: `bound` while it runs, `close` once it has ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._freed_to = 0  # no byte before it, but for the first ones, is on the disk any more

    def bound(self) -> None:
        """Free the middle of the file where it has grown beyond what is kept."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return
        end = (size - KEPT_BYTES) // _BLOCK * _BLOCK
        begin = max(self._freed_to, -(-KEPT_BYTES // _BLOCK) * _BLOCK)
        if end - begin < _SLACK_BYTES:
            return
        if _punch(self.path, begin, end - begin):
            self._freed_to = end
        else:
            # No holes here: what comes goes on at its place in a file without the rest.
            os.truncate(self.path, KEPT_BYTES)
            self._freed_to = size

    def close(self, hidden: Sequence[str] = ()) -> None:
        """Write the file anew without its middle, and with `***` for the `hidden` values."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return
        left_out = max(self._freed_to, size - KEPT_BYTES) - KEPT_BYTES
        if left_out <= _SLACK_BYTES and not secret_values.findable(hidden):
            return
        with self.path.open("rb") as file:
            if left_out <= _SLACK_BYTES:
                text = file.read()
            else:
                first = file.read(KEPT_BYTES)
                file.seek(KEPT_BYTES + left_out)
                notice = f"\n[torchdoctor: {left_out} bytes of output are left out here]\n"
                text = first + notice.encode() + file.read()
        text = secret_values.hide_in_bytes(text, hidden)
        replaced = self.path.with_name(self.path.name + ".part")
        replaced.write_bytes(text)
        replaced.replace(self.path)


def _punch(path: Path, begin: int, length: int) -> bool:
    """Free a stretch of a file on the disk; its size stays. False: the file system cannot."""
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if fallocate is None:
        return False
    begins = ctypes.c_int64(begin)
    bytes_long = ctypes.c_int64(length)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        failed: int = fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, begins, bytes_long)
        return failed == 0
    finally:
        os.close(descriptor)
