"""`torchdoctor mcp`: the commands as tools of the Model Context Protocol, over stdio alone.

Each tool starts the command line as a process, and hands out the summary of its JSON.
"""

import importlib.util

from torchdoctor.schema.errors import UsageError

HELP = (
    "Serve the commands to a coding agent by the Model Context Protocol, on stdin and stdout.\n\n"
    "It needs the official SDK: pip install 'torchdoctor\\[mcp]'. A client starts it by itself; "
    'its settings take: {"command": "torchdoctor", "args": \\["mcp"]}'
)


def mcp() -> None:
    """Answer until the client goes away; what it started then ends too."""
    if importlib.util.find_spec("mcp") is None:
        raise UsageError("The SDK is not installed here: pip install 'torchdoctor[mcp]'.")
    from torchdoctor.cli.mcp.server import serve

    serve()
