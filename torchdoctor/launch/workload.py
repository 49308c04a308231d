"""The command to start, from what was typed."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchdoctor.launch import notebooks
from torchdoctor.machine.environment import SAFE_PATH
from torchdoctor.schema import Workload
from torchdoctor.schema.errors import UsageError

_PYTHON = re.compile(r"^(python|pypy)[\d.]*(\.exe)?$", re.IGNORECASE)
_HAS_TORCH = "import importlib.util as u; raise SystemExit(0 if u.find_spec('torch') else 9)"
_COMPILE = "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')"
_ASK_TIMEOUT_S = 60.0
_WITHOUT_TORCH = (
    "The interpreter '{}' has no torch: activate the environment of the program, or choose its "
    "interpreter with --python."
)
# Each keeps the interpreter from reading PYTHONPATH or from running sitecustomize.
_BYPASSES = {"I": "isolated mode", "E": "ignored environment", "S": "no site module"}


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The Python that starts a program, and what made us take it."""

    path: str
    named_by: str  # such as "--python", "./.venv"


def workload_of(args: Sequence[str], python: str | None = None, cwd: str | None = None) -> Workload:
    """Return the command to start, with the script and interpreter it uses where they are known.

    `args`: a script and its arguments, or any other command; `python`: the interpreter, else the
    command's own, or for a script the one of `choose_interpreter`.
    Raise UsageError if there is nothing to run, script or command are not found, it is not Python,
    or its interpreter has no torch or ignores the environment, which would keep the probe out.
    """
    if not args or not args[0].strip():
        raise UsageError("Nothing to run: name a script, or a command after '--'.")
    folder = cwd or str(Path.cwd())
    words = list(args)
    if not Path(folder).is_dir():
        raise UsageError(f"The folder {folder} does not exist.")
    name = words[0]
    if name == "-m" or _is_script(name, folder):
        chosen = choose_interpreter(python, folder)
        if _is_notebook(Path(folder, name)):
            return _of_notebook(words, folder, chosen)
        script = None if name == "-m" else _checked_script(name, folder, chosen.path)
        return Workload(
            command=[chosen.path, *words],
            cwd=folder,
            python=chosen.path,
            python_from=chosen.named_by,
            script=script,
            notebook=notebooks.name_of_cell(Path(script)) if script else None,
        )
    is_python = _PYTHON.match(Path(name).name)
    if python is not None:
        if not is_python:
            raise UsageError(
                f"--python chooses the interpreter for a script, but '{name}' is a command."
            )
        name = words[0] = choose_interpreter(python, folder).path
    interpreter = _find(name, folder)
    if interpreter is None:
        raise UsageError(f"The command '{name}' was not found.")
    if not is_python:
        # What another program is to start, as in `torchrun ... train.py`.
        scripts = (Path(folder, word).absolute() for word in words[1:] if word.endswith(".py"))
        script = next((str(path) for path in scripts if path.is_file()), None)
        return Workload(command=words, cwd=folder, script=script)
    rest = _after_options(words)
    _check_torch(interpreter, name)
    named = rest and not rest[0].startswith("-")
    script = _checked_script(rest[0], folder, interpreter) if named else None
    return Workload(
        command=words,
        cwd=folder,
        python=interpreter,
        python_from="the command" if python is None else "--python",
        script=script,
    )


def _is_notebook(path: Path) -> bool:
    """Return True for a notebook, or a script that was exported from one and asks for IPython."""
    if not path.is_file():
        return False
    if path.suffix == notebooks.SUFFIX:
        return True
    try:
        return path.suffix == ".py" and notebooks.is_exported(path.read_bytes())
    except OSError:
        return False


def _of_notebook(words: Sequence[str], folder: str, interpreter: Interpreter) -> Workload:
    """Return the workload of the script that is made of a notebook."""
    name, *arguments = words
    made = notebooks.converted(Path(folder, name), folder)
    return Workload(
        command=[interpreter.path, made.script, *arguments],
        cwd=folder,
        python=interpreter.path,
        python_from=interpreter.named_by,
        script=made.script,
        notebook=name,
        remark=made.remark,
    )


def _is_script(name: str, folder: str) -> bool:
    """Return whether a script was named, no command: by its name, or because it lies there."""
    path = Path(folder, name)
    if name.endswith((".py", ".pyw", ".ipynb", ".pyc")) or path.is_dir():
        return True
    return path.is_file() and _find(name, folder) is None and not os.access(path, os.X_OK)


def _after_options(args: list[str]) -> list[str]:
    """Return what follows the interpreter's own options, none of which may keep the probe out."""
    at = 1
    while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "-m", "-c", "--"):
        option = args[at]
        at += 1
        for position, letter in enumerate(option[1:] if option[1] != "-" else "", 1):
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
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"The script '{name}' cannot be read ({error.strerror}).") from None
    # A zip file with a __main__.py, or a compiled file, is Python too.
    if source.startswith(b"PK") or name.endswith(".pyc"):
        return str(path.absolute())
    try:
        compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        # The program's interpreter may know a newer Python than ours.
        if interpreter == sys.executable or not _runs(interpreter, _COMPILE, str(path)):
            where = f", line {error.lineno}" if error.lineno else ""
            raise UsageError(f"'{name}' is not valid Python: {error.msg}{where}.") from None
    except ValueError as error:
        raise UsageError(f"'{name}' is not a Python script: {error}.") from None
    return str(path.absolute())


def choose_interpreter(python: str | None, folder: str) -> Interpreter:
    """Return the interpreter for a script: the one asked for, or the first that has torch.

    They are asked in this order: the active virtual environment's, that of ./.venv, torchdoctor's
    own, those on the PATH. Raise UsageError where none has torch.
    """
    if python is not None:
        path = _find(python, folder)
        if path is None:
            raise UsageError(f"The interpreter '{python}' was not found.")
        _check_torch(path, python)
        return Interpreter(path=path, named_by="--python")
    interpreters = list(_known_interpreters(folder))
    for interpreter in interpreters:
        if has_torch(interpreter.path):
            return interpreter
    raise UsageError(_WITHOUT_TORCH.format(interpreters[0].path))


def _known_interpreters(folder: str) -> Iterator[Interpreter]:
    """Yield the interpreters that a script may be meant for, each once, the likeliest first."""
    environments = {
        "the active virtual environment": os.environ.get("VIRTUAL_ENV"),
        "the active conda environment": os.environ.get("CONDA_PREFIX"),
        "./.venv": str(Path(folder, ".venv")),
    }
    named = [
        (shutil.which("python", path=str(Path(root, binaries))), name)
        for name, root in environments.items()
        if root
        for binaries in ("bin", "Scripts")
    ]
    named += [(sys.executable, "torchdoctor's own environment")]
    named += [(shutil.which(name), "the PATH") for name in ("python3", "python")]
    asked = set()
    for path, name in named:
        if path and path not in asked:
            asked.add(path)
            yield Interpreter(path=path, named_by=name)


def _check_torch(interpreter: str, name: str) -> None:
    if not has_torch(interpreter):
        raise UsageError(_WITHOUT_TORCH.format(name))


def has_torch(interpreter: str) -> bool:
    """Return whether torch can be imported there; it is looked for, not imported."""
    return _runs(interpreter, _HAS_TORCH)


def _runs(interpreter: str, code: str, *arguments: str) -> bool:
    """Return whether this code ends well there; the working folder is not imported from."""
    command = [interpreter, "-c", f"{SAFE_PATH}\n{code}", *arguments]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_TIMEOUT_S
        )
    except OSError:
        return False
    except subprocess.TimeoutExpired:  # a busy machine says nothing of the program: the run will
        return True
    return ended.returncode == 0
