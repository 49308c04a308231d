"""The server: lists the tools, answers calls, and ends with its client."""

import inspect
import os
import sys
import traceback
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from torchdoctor import __version__
from torchdoctor.cli.agent_guide import IN_SHORT
from torchdoctor.cli.mcp.commands import CommandError, Commands
from torchdoctor.cli.mcp.tools import ARGUMENTS, Tools, answered
from torchdoctor.schema.errors import TorchdoctorError

_READS = {"diagnose_trace", "explain", "patch", "compare"}  # nothing is run


def serve() -> None:
    """Answer the client on standard input and output until it goes away."""
    anyio.run(_serve)
    # A reader of the standard input may still wait in a thread.
    sys.stderr.flush()
    os._exit(0)


async def _serve() -> None:
    tools = Tools(Commands())

    async def list_tools(context: Any, asked: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[described(name) for name in ARGUMENTS])

    async def call_tool(context: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            answer = await answered(tools, asked.name, asked.arguments or {})
        except (TorchdoctorError, CommandError) as error:
            return _result(str(error).partition("\n")[0], is_error=True)
        except Exception as error:
            traceback.print_exc()  # into the client's log
            sentence = f"This is a defect of torchdoctor ({type(error).__name__}: {error})."
            return _result(sentence.partition("\n")[0], is_error=True)
        return _result(msgspec.json.encode(_rounded(answer)).decode())

    server: Server[Any] = Server(
        "torchdoctor",
        version=__version__,
        instructions=IN_SHORT,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


def described(name: str) -> types.Tool:
    """Return a tool as it is listed."""
    arguments = ARGUMENTS[name]
    reads = types.ToolAnnotations(read_only_hint=name in _READS, destructive_hint=False)
    return types.Tool(
        name=name,
        description=inspect.getdoc(arguments),
        input_schema=_schema(arguments),
        annotations=reads,
    )


def _schema(arguments: type) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments, without references."""
    (_,), components = msgspec.json.schema_components([arguments])
    schema = components[arguments.__name__]
    return {name: value for name, value in schema.items() if name not in ("title", "description")}


def _rounded(value: Any) -> Any:
    """Return it with three digits of each figure: more say nothing, and cost tokens."""
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _result(text: str, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)
