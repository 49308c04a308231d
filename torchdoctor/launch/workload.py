"""The command to start, from what was typed, or one sentence about what is wrong with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torchdoctor.words import Workload
from torchdoctor.words.errors import UsageError

_PYTHON = re.compile(r"^(python|pypy)[\d.]*(\.exe)?$", re.IGNORECASE)
_HAS_TORCH = "import importlib.util as u; raise SystemExit(0 if u.find_spec('torch') else 9)"
_COMPILE = "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')"
_ASK_TIMEOUT_S = 60.0
# Each keeps the interpreter from reading PYTHONPATH or from running sitecustomize.
_BYPASSES = {"I": "isolated mode", "E": "ignored environment", "S": "no site module"}


def workload_of(args: Sequence[str], python: str | None = None, cwd: str | None = None) -> Workload:
    """Return the command to start, with the script and interpreter it uses where they are known.

    Args:
        args: as typed: a script and its arguments, or any other command, which is taken as is.
        python: interpreter for a script; None: that of the active virtual environment, else the
            first on the PATH with torch, else the one that runs torchdoctor.
        cwd: folder to start in; None: the current one.

    Raises:
        UsageError: nothing to run, script or command not found, not Python, an interpreter
            without torch, or one told to ignore the environment, which would keep the probe out.
    """
    if not args or not args[0].strip():
        raise UsageError("Nothing to run: name a script, or a command after '--'.")
    folder = cwd or str(Path.cwd())
    if not Path(folder).is_dir():
        raise UsageError(f"The folder {folder} does not exist.")
    if args[0] == "-m" or _is_script(args[0], folder):
        return _script(list(args), python, folder)
    if python is not None:
        raise UsageError(
            f"--python chooses the interpreter for a script, but '{args[0]}' is a command."
        )
    return _command(list(args), folder)


def _is_script(name: str, folder: str) -> bool:
    """Return whether a script was named, no command: by its name, or because it lies there."""
    if name.endswith((".py", ".pyw", ".ipynb", ".pyc")):
        return True
    path = Path(folder, name)
    if path.is_dir():
        return True
    if not path.is_file() or (_find(name, folder) is not None):
        return False
    return not os.access(path, os.X_OK)


def _script(args: list[str], python: str | None, folder: str) -> Workload:
    chosen = choose_interpreter(python, folder)
    script = None
    if args[0] != "-m":
        script = _checked_script(args[0], folder, chosen)
    return Workload(command=[chosen, *args], cwd=folder, python=chosen, script=script)


def _command(args: list[str], folder: str) -> Workload:
    if _find(args[0], folder) is None:
        raise UsageError(f"The command '{args[0]}' was not found.")
    if not _PYTHON.match(Path(args[0]).name):
        return Workload(command=args, cwd=folder, script=_script_of_launcher(args[1:], folder))
    rest = _after_options(args)
    interpreter = _find(args[0], folder)
    assert interpreter is not None
    if not has_torch(interpreter):
        raise UsageError(_without_torch(args[0]))
    script = None
    if rest and not rest[0].startswith("-"):
        script = _checked_script(rest[0], folder, interpreter)
    return Workload(command=args, cwd=folder, python=interpreter, script=script)


def _script_of_launcher(args: list[str], folder: str) -> str | None:
    """Return the script that another program is to start, as in `torchrun ... train.py`."""
    for argument in args:
        path = Path(folder, argument)
        if argument.endswith(".py") and path.is_file():
            return str(path.absolute())
    return None


def _after_options(args: list[str]) -> list[str]:
    """Return what follows the interpreter's own options, none of which may keep the probe out."""
    at = 1
    while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "-m", "-c", "--"):
        option = args[at]
        at += 1
        if option.startswith("--"):
            continue
        for position, letter in enumerate(option[1:], 1):
            if letter in _BYPASSES:
                raise UsageError(
                    f"'{args[0]} -{letter}' ({_BYPASSES[letter]}) keeps torchdoctor's probe out of "
                    f"the program: leave -{letter} away to measure it."
                )
            if letter in "mc":
                return [f"-{letter}"]
            if letter in "WX":  # takes the rest, or the next argument
                at += position == len(option) - 1
                break
    return args[at:]


def _find(name: str, folder: str) -> str | None:
    """Return the absolute path of a command, as a shell in `folder` would find it."""
    if os.sep in name:
        path = Path(folder, name)
        return str(path.absolute()) if path.is_file() and os.access(path, os.X_OK) else None
    return shutil.which(name)


def _checked_script(name: str, folder: str, interpreter: str) -> str:
    path = Path(folder, name)
    if not path.exists():
        raise UsageError(f"The script '{name}' does not exist in {folder}.")
    if path.is_dir():
        if (path / "__main__.py").is_file():
            return str(path.absolute())
        raise UsageError(f"'{name}' is a folder without a __main__.py: name the script in it.")
    if name.endswith(".ipynb"):
        raise UsageError(
            f"'{name}' is a notebook: export it first (jupyter nbconvert --to script {name})."
        )
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"The script '{name}' cannot be read ({error.strerror}).") from None
    # A zip file with a __main__.py, or a compiled file, is Python too.
    if not source.startswith(b"PK") and not name.endswith(".pyc"):
        _check_syntax(name, path, source, interpreter)
    return str(path.absolute())


def _check_syntax(name: str, path: Path, source: bytes, interpreter: str) -> None:
    try:
        compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        # The program's interpreter may know a newer Python than ours.
        if interpreter != sys.executable and _runs(interpreter, "-c", _COMPILE, str(path)):
            return
        where = f", line {error.lineno}" if error.lineno else ""
        raise UsageError(f"'{name}' is not valid Python: {error.msg}{where}.") from None
    except ValueError as error:
        raise UsageError(f"'{name}' is not a Python script: {error}.") from None


def choose_interpreter(python: str | None, folder: str) -> str:
    """Return the interpreter for a script; raise UsageError where none has torch."""
    if python is not None:
        path = _find(python, folder)
        if path is None:
            raise UsageError(f"The interpreter '{python}' was not found.")
        if not has_torch(path):
            raise UsageError(_without_torch(python))
        return path
    candidates = []
    environment = os.environ.get("VIRTUAL_ENV")
    if environment:
        candidates.append(shutil.which("python", path=str(Path(environment, "bin"))))
        candidates.append(shutil.which("python", path=str(Path(environment, "Scripts"))))
    candidates += [shutil.which("python3"), shutil.which("python"), sys.executable]
    names = list(dict.fromkeys(c for c in candidates if c))
    for candidate in names:
        if has_torch(candidate):
            return candidate
    raise UsageError(_without_torch(names[0]))


def _without_torch(name: str) -> str:
    return (
        f"The interpreter '{name}' has no torch: activate the environment of the program, or "
        "choose its interpreter with --python."
    )


def has_torch(interpreter: str) -> bool:
    """Return whether torch can be imported there; it is looked for, not imported."""
    return _runs(interpreter, "-c", _HAS_TORCH)


def _runs(*command: str) -> bool:
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0
