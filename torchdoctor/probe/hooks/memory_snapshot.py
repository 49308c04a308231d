"""Every allocation of the analysed steps, with its Python stack, as torch's own snapshot file.

Only where the program trains on a CUDA device; recording stacks costs time, and nothing is timed
in these steps. https://pytorch.org/memory_viz shows the file.
"""

import os

_MOST_ENTRIES = 100_000  # some tens of megabytes


class MemorySnapshot:
    """Records from `start` to `stop`, then writes `memory-<pid>.pickle` to the channel."""

    def __init__(self, session):
        self._session = session
        self._path = None
        self.on = False

    def start(self):
        """Begin to record, where there is a device and this torch can."""
        cuda = self._session.torch.cuda
        memory = getattr(cuda, "memory", None)
        if not cuda.is_initialized() or not hasattr(memory, "_record_memory_history"):
            return
        if getattr(memory, "_dump_snapshot", None) is None or _is_recording(self._session.torch):
            return  # the program's own history is not ended by ours
        memory._record_memory_history(max_entries=_MOST_ENTRIES)
        self.on = True

    def stop(self):
        """Write the file and end recording."""
        if not self.on:
            return
        self.on = False
        session, memory = self._session, self._session.torch.cuda.memory
        path = os.path.join(session.channel, "memory-%d.pickle" % session.pid)
        try:
            memory._dump_snapshot(path + ".part")
            os.replace(path + ".part", path)
            self._path = path
        finally:
            memory._record_memory_history(enabled=None)

    def facts(self):
        """`memory_snapshot` of the process facts: the file; None: not taken."""
        return {"memory_snapshot": self._path}


def _is_recording(torch):
    asked = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    try:
        return asked is not None and bool(asked())
    except RuntimeError:
        return False
