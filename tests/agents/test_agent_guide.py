"""The page for coding agents says what the commands are and do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import commands

from torchdoctor.cli import agent_guide, front
from torchdoctor.cli.mcp.tools import ARGUMENTS
from torchdoctor.schema.errors import EXIT_CODES, TorchdoctorError

ROOT = Path(__file__).parent.parent.parent


def test_the_command_prints_the_page_that_the_docs_have() -> None:
    printed = commands.torchdoctor("agent-guide").stdout
    assert printed == agent_guide.page()
    assert printed == (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    assert printed == (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    assert json.loads(commands.torchdoctor("agent-guide", "--format", "json").stdout)["page"]


def test_every_command_and_tool_that_it_names_exists() -> None:
    page = agent_guide.page()
    named = set(re.findall(r"`torchdoctor ([a-z-]+)", page))
    known = {command.name for command in front.app.registered_commands}
    assert named and named <= known
    assert all(f"`{tool}`" in page for tool in ARGUMENTS)


def test_its_options_are_those_of_the_commands() -> None:
    for command, options in re.findall(r"`torchdoctor ([a-z-]+)([^`]*)`", agent_guide.page()):
        helped = commands.torchdoctor(command, "--help", COLUMNS="200").stdout
        for option in re.findall(r"--[a-z-]+", options):
            assert option in helped, (command, option)


def test_its_exit_codes_are_those_of_the_readme() -> None:
    codes = re.compile(r"^\| (\d+) \|", re.MULTILINE)
    readme = codes.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert codes.findall(agent_guide.page()) == readme == [str(code) for code in EXIT_CODES]


def test_every_error_has_an_exit_code_that_is_listed() -> None:
    kinds = [TorchdoctorError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.exit_code for kind in kinds} | {0, 1, 10} == set(EXIT_CODES)
