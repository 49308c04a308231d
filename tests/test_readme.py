"""README's commands exist: a newcomer who types them gets no usage error."""

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import commands
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line[2:]
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]


@functools.cache
def _help(command: str) -> str:
    return commands.torchdoctor(command, "--help", COLUMNS="200", TERM="dumb").stdout


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [shlex.split(c)[1] for c in COMMANDS if c.startswith("make ")]
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("torchdoctor ")])
def test_options_of_the_readmes_commands_exist(command: str) -> None:
    words = shlex.split(command)
    text = _help(words[1])
    own = []
    for word in words[2:]:
        if word == "--" or word.endswith(".py"):
            break
        own.append(word)
    for option in (word for word in own if word.startswith("--")):
        assert option in text, f"{option} is no option of torchdoctor {words[1]}"


@pytest.mark.parametrize(
    "arguments", [["explain", "loader-workers"], ["explain", "--tree"], ["env"]]
)
def test_commands_that_need_no_program_run(arguments: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "torchdoctor.cli.front", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_exit_codes_of_the_readme_are_the_errors() -> None:
    from torchdoctor.schema import errors

    for error in (errors.UsageError, errors.ProgramFailed, errors.NoStepFound, errors.TimedOut):
        assert f"{error.exit_code} " in README
