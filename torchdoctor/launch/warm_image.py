"""The warm image of a run (see `probe/warm_image.py`): launches are forked from it."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass

from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.launch.started import Started

_PATIENCE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class WarmImage:
    """A process that forks launches."""

    sandbox: Sandbox
    started: Started
    link: socket.socket

    def ready(self) -> WarmImage | None:
        """Wait until it can fork launches; None: it cannot, and has ended."""
        self.link.settimeout(_PATIENCE_S)
        with contextlib.suppress(OSError):
            if self.link.recv(16):
                self.link.setblocking(True)  # also of what launches inherit
                return self
        self.close()
        return None

    @property
    def place(self) -> tuple[int, str] | None:
        """Return its socket and user namespace for a launch; None: it has ended."""
        pid = self.started.popen.poll() is None and self.started.popen.pid
        return (self.link.fileno(), f"/proc/{pid}/ns/user") if pid else None

    def close(self) -> None:
        """End it; what was forked goes on."""
        self.link.close()
        self.started.popen.kill()
        self.started.popen.wait()
        self.sandbox.discard(self.started)
