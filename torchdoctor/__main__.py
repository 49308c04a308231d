"""`torchdoctor`, also as `python -m torchdoctor`: Ctrl-C ends it in one line from its start on."""

import os
import sys


def _leave_working_folder() -> None:
    """Import nothing from the working folder, which `python -m` puts first.

    A json.py there is not Python's own; but this package may itself lie in it.
    """
    try:
        ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
        first = os.path.abspath(sys.path[0] or os.curdir) if sys.path else ours  # noqa: PTH100
        if first == os.getcwd() != ours:  # noqa: PTH109
            del sys.path[0]
    except OSError:  # the working folder is gone, which the command line says in its own words
        return


def main() -> None:
    """Start the command line."""
    try:
        from torchdoctor.cli.front import main as command_line
    except KeyboardInterrupt:
        print("torchdoctor: interrupted.", file=sys.stderr)
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    _leave_working_folder()
    main()
