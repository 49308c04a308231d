"""Which processes and threads may log: those that train, and never a loader's worker."""

from __future__ import annotations

import sys
import threading
from typing import Any

from . import faults

get_ident = threading.get_ident


class Liveness:
    """Decides lazily, because neither a fork nor a spawned child knows at first what it is for.

    The hooks ask `get_ident() in live.threads or live.admit(...)` at every event, so that a
    thread that is known costs one look-up.
    """

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.is_worker = False
        self.on_first: list[Any] = []  # called once when this process's first thread is admitted

    def admit(self, training: bool) -> bool:
        """Whether the current thread, not admitted so far, may log.

        Args:
            training: the event is a backward or an optimizer step, which makes any thread a
                trainer. A loader that is iterated in a background thread is a queue's filler:
                its waits are not the training's.
        """
        if self.is_worker:
            return False
        if _in_loader_worker():
            self.is_worker = True
            return False
        if not training and threading.current_thread() is not threading.main_thread():
            return False
        first = not self.threads
        self.threads.add(get_ident())
        if first:
            for function in self.on_first:
                try:
                    function()
                except Exception as error:
                    faults.note("first event", error)
        return True

    def forget(self) -> None:
        """After a fork: it is open again what this process is."""
        self.threads.clear()
        self.is_worker = False


def _in_loader_worker() -> bool:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and getattr(worker, "_worker_info", None) is not None
