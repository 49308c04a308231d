"""The command that is worth running next, as a call of a tool."""

import shlex
from collections.abc import Callable, Sequence
from typing import Any

# What each option of `run` is called as an argument, and what its value is made of.
_ITS_VALUE: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--budget": ("budget", str),
    "--python": ("python", str),
    "--fixes": ("fixes", lambda text: text.split(",")),
    "--network": ("network", str),
    "--steps-total": ("steps_total", int),
    "--cost-per-hour": ("cost_per_hour", float),
}
_OF_GATE = {  # the same of `gate`, whose values are text, but for a list of fixes
    "--against": "against",
    "--baseline": "baseline",
    "--patch-of": "patch_of",
    "--fixes": "fixes",
}


def as_call(following: dict[str, Any] | None, folder: str) -> dict[str, Any] | None:
    """Return what to do next; a command that no tool stands for is left as it is."""
    if following is None:
        return None
    called = _call(shlex.split(following["command"])[1:], folder)
    if called is None:
        return following
    tool, arguments = called
    return call(tool, arguments, following["why"])


def call(tool: str, arguments: dict[str, Any], why: str) -> dict[str, Any]:
    """Return the call of a tool, and why that one."""
    return {"tool": tool, "arguments": arguments, "why": why}


def _call(words: Sequence[str], folder: str) -> tuple[str, dict[str, Any]] | None:
    """Return the tool that a command's words stand for, with its arguments."""
    match list(words):
        case [command, "--format", "json", *others]:  # as every tool answers
            return _call([command, *others], folder)
        case ["report", "--status", run_folder]:
            return "run_trials", {"run_folder": run_folder}
        case ["explain", ident]:
            return "explain", {"id": ident, "folder": folder}
        case ["patch", run_folder, "--apply"] | ["patch", run_folder] if run_folder[0] != "-":
            return "patch", {"run_folder": run_folder, "folder": folder}
        case ["patch", run_folder, "--fixes", idents] | ["patch", "--fixes", idents, run_folder]:
            arguments = {"run_folder": run_folder, "fixes": idents.split(","), "folder": folder}
            return "patch", arguments
        case ["gate", *options_and_program] if "--" in options_and_program:
            asked = _of_gate(options_and_program)
            return None if asked is None else ("gate", {**asked, "folder": folder})
        case ["run", *options_and_program]:
            asked = _of_run(options_and_program)
            return None if asked is None else ("run_trials", {**asked, "folder": folder})
    return None


def _of_gate(words: list[str]) -> dict[str, Any] | None:
    """Return the arguments of the tool; None: an option has no argument there."""
    end = words.index("--")
    given = dict(zip(words[:end:2], words[1:end:2], strict=False))
    if end % 2 or not given.keys() <= _OF_GATE.keys():
        return None
    options = {_OF_GATE[option]: value for option, value in given.items()}
    fixes = {"fixes": options["fixes"].split(",")} if "fixes" in options else {}
    return {"program": words[end + 1 :], **options, **fixes}


def _of_run(words: list[str]) -> dict[str, Any] | None:
    """Return the arguments of the tool; None: an option has no argument there."""
    arguments: dict[str, Any] = {}
    while words and words[0].startswith("--"):
        option, *words = words
        if option == "--":
            break
        if option in ("--allow-training-changes", "--allow-output-changes"):
            arguments[option[2:].replace("-", "_")] = True
        elif option in _ITS_VALUE and words:
            value, *words = words
            name, made = _ITS_VALUE[option]
            arguments[name] = made(value)
        else:
            return None
    return {"program": words, **arguments} if words else None
