"""`torchdoctor`, also as `python -m torchdoctor`: Ctrl-C ends it in one line from its start on."""

import sys


def main() -> None:
    """Start the command line."""
    try:
        from torchdoctor.cli.front import main as command_line
    except KeyboardInterrupt:
        print("torchdoctor: interrupted.", file=sys.stderr)
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
