"""A process beside the server that ends what the server started, however the server ends.

It reads the pid of each started process, one a line, until the server is gone.
"""

import signal
import sys

from torchdoctor.machine.processes import end_gently, tree

_TO_WRITE_S = 20.0  # what a run measured until then is written


def main() -> None:
    """Wait for the end of the standard input, then end all that was named there."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    started = []
    for line in sys.stdin:
        started += tree(int(line))[:1]
    end_gently(started, _TO_WRITE_S)


if __name__ == "__main__":
    main()
