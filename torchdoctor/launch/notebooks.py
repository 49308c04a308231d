"""Notebooks, and scripts that were exported from one, as a script that can be launched.

Each cell is compiled by itself, as IPython does it: `from __future__` may stand anywhere, and the
report's places are a cell and a line in it. Magics and shell commands are left out.
"""

import ast
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchdoctor.launch.run_folder import RUNS
from torchdoctor.schema import Evidence, fact
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import write_text

SUFFIX = ".ipynb"
_MOST_SHOWN = 3  # of the lines and cells that are left out
_FOLDER = ".notebooks"  # below that of the runs
_CELL = "cell"  # begins the name of a script that is made of one
_MADE_OF_CELL = re.compile(r"# Made by torchdoctor of (In\[\d+\]):")
_EXPORTED_CELL = re.compile(r"^# In ?\[[\d ]*\]:?\s*$", re.MULTILINE)
_GET_IPYTHON = re.compile(r"^(\s*)(?:([\w, ]+?)\s*=\s*)?get_ipython\(\)", re.MULTILINE)
_KEEPS_CODE = ("time", "timeit", "capture", "prun", "python", "python3", "pyspy")
_LINE = re.compile(r"^(?P<indent>\s*)(?:(?P<name>[\w, ]+?)\s*=\s*)?(?P<kind>[!%?])(?P<rest>.*)$")
_HELP = re.compile(r"^\s*[\w.]+\?{1,2}\s*$")
_TIMED = re.compile(r"^%?(?:time|timeit)\s+(?:-\w+\s*\d*\s+)*(?P<code>.+)$")

_SCRIPT = """\
# Made by torchdoctor of {name}: it is written anew for each run.
def _cells():
    import ast, builtins, linecache, os, sys

    os.environ.setdefault("MPLBACKEND", "Agg")  # a plot waits for nobody
    sys.path[0] = {folder!r}
    names, flags = sys.modules["__main__"].__dict__, 0
    names.pop("__file__", None)
    if not hasattr(builtins, "display"):
        builtins.display = lambda *_, **__: None
    known = 0
    for name in __import__("__future__").all_feature_names:
        known |= getattr(__import__("__future__"), name).compiler_flag
    for place, source in {cells!r}:
        linecache.cache[place] = len(source), None, source.splitlines(True), place
        code = compile(source, place, "exec", flags=flags, dont_inherit=True)
        flags |= code.co_flags & known
        yield code


for _code in _cells():
    exec(_code, globals())
"""


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A script made of a notebook."""

    script: str  # its path
    remark: Evidence | None  # what was left out


@dataclass(frozen=True, kw_only=True)
class _Cell:
    name: str  # of places in it
    number: int
    source: str


def is_exported(source: bytes) -> bool:
    """Return True for a script that nbconvert made of a notebook that asks for IPython."""
    text = source.decode("utf-8", "replace")
    return bool(_EXPORTED_CELL.search(text) and _GET_IPYTHON.search(text))


def name_of_cell(script: Path) -> str | None:
    """Return "In[3]" for the script that was made of that cell of an open notebook."""
    if script.parent.name != _FOLDER or not script.name.startswith(f"{_CELL}-"):
        return None
    try:
        with script.open(encoding="utf-8") as file:
            made = _MADE_OF_CELL.match(file.readline())
    except (OSError, UnicodeError):
        return None
    return made[1] if made is not None else None


def converted(path: Path, cwd: str) -> Converted:
    """Return the script of a notebook, written below the folder of runs.

    Raise UsageError, with what to do, where it is none that can be launched.
    """
    cells = _cells_of_notebook(path) if path.suffix == SUFFIX else _cells_of_export(path)
    return _launchable(cells, path.name, path.stem, path.absolute().parent, cwd)


def converted_cell(source: str, number: int, cwd: str) -> Converted:
    """Return the script of one cell of a notebook that is open; imports are looked for in `cwd`."""
    name = f"In[{number}]"
    cell = _Cell(name=str(Path(cwd, name)), number=number, source=source)
    return _launchable([cell], name, _CELL, Path(cwd), cwd)


def _launchable(cells: Sequence[_Cell], name: str, stem: str, folder: Path, cwd: str) -> Converted:
    left_out: list[str] = []
    kept = [(cell.name, _without_magics(cell, name, left_out)) for cell in cells]
    if not any(source.strip() for _, source in kept):
        raise UsageError(f"'{name}' holds no code: its code cells are empty.")
    text = _SCRIPT.format(name=name.replace("\n", " "), folder=str(folder), cells=kept)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    script = Path(cwd) / RUNS / _FOLDER / f"{stem}-{digest}.py"
    write_text(text, script)
    return Converted(script=str(script.absolute()), remark=_remark(name, left_out))


def _remark(name: str, left_out: Sequence[str]) -> Evidence | None:
    if not left_out:
        return None
    shown = list(dict.fromkeys(left_out[:_MOST_SHOWN]))
    shown += ["..."] if len(left_out) > _MOST_SHOWN else []
    return fact("cells-left-out", cells=len(left_out), notebook=name, shown=shown)


def _cells_of_notebook(path: Path) -> list[_Cell]:
    try:
        notebook = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"'{path.name}' cannot be read ({error.strerror}).") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"'{path.name}' is no notebook: {error}.") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise UsageError(
            f"'{path.name}' is no notebook of version 4: open it in Jupyter and save it again."
        )
    language = _language(notebook)
    if language not in (None, "python", "python3", "ipython"):
        raise UsageError(f"'{path.name}' is a notebook in {language}, not in Python.")
    code_cells = []
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source", "")
            lines = source if isinstance(source, list) else [source]
            text = "".join(line for line in lines if isinstance(line, str))
            code_cells.append(
                _Cell(name=f"{path.absolute()}#cell{number}", number=number, source=text)
            )
    return code_cells


def _language(notebook: dict[str, object]) -> str | None:
    metadata = notebook.get("metadata")
    for name in ("language_info", "kernelspec"):
        about = metadata.get(name) if isinstance(metadata, dict) else None
        language = about.get("name" if name == "language_info" else "language") if about else None
        if isinstance(language, str):
            return language.lower()
    return None


def _cells_of_export(path: Path) -> list[_Cell]:
    """Return the cells of an exported script; empty lines before each keep its line numbers."""
    text = path.read_text(encoding="utf-8", errors="replace")
    starts = [0, *(match.start() for match in _EXPORTED_CELL.finditer(text))]
    cells = []
    for number, (begin, end) in enumerate(zip(starts, [*starts[1:], len(text)], strict=True)):
        before = "\n" * text.count("\n", 0, begin)
        cells.append(
            _Cell(name=str(path.absolute()), number=number, source=before + text[begin:end])
        )
    return cells


def _without_magics(cell: _Cell, notebook: str, left_out: list[str]) -> str:
    """Return a cell's source as Python; note what is left out, line by line or as a whole."""
    source = cell.source.replace("\r\n", "\n")
    first = source.lstrip().split("\n", 1)[0]
    if first.startswith("%%"):
        magic = first[2:].split(maxsplit=1)[0] if first[2:].split() else ""
        left_out.append(f"%%{magic}")
        if magic not in _KEEPS_CODE:
            return ""
        source = source.replace(first, "", 1)
    source = _GET_IPYTHON.sub(lambda match: _in_place(match, left_out), source)
    if not _parses(source):
        source = "\n".join(_line(line, left_out) for line in source.split("\n"))
    try:
        ast.parse(source)
    except SyntaxError as error:
        at = f"cell {cell.number}, line {error.lineno}"
        raise UsageError(f"'{notebook}' is not valid Python ({at}): {error.msg}.") from None
    except ValueError as error:
        raise UsageError(f"'{notebook}' is not Python (cell {cell.number}): {error}.") from None
    _check_await(source, cell, notebook)
    return source


def _in_place(match: re.Match[str], left_out: list[str]) -> str:
    """Return what stands for a call of get_ipython(), whose arguments stay a comment."""
    left_out.append("get_ipython()")
    return f"{match[1]}{match[2]} = None  # " if match[2] else f"{match[1]}pass  # "


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def _line(line: str, left_out: list[str]) -> str:
    """Return a line without what IPython alone understands; the number of lines stays."""
    if _HELP.match(line):
        left_out.append(line.strip())
        return line[: len(line) - len(line.lstrip())] + "pass"
    match = _LINE.match(line)
    if match is None:
        return line
    if timed := _TIMED.match(match["rest"] if match["kind"] == "%" else ""):
        left_out.append("%time")
        return match["indent"] + timed["code"]
    words = match["rest"].split()
    left_out.append(match["kind"] + (words[0] if words else ""))
    return match["indent"] + (f"{match['name']} = None" if match["name"] else "pass")


def _check_await(source: str, cell: _Cell, notebook: str) -> None:
    """Raise UsageError for `await` outside a function, which Jupyter's own event loop answers."""
    try:
        compile(source, notebook, "exec", dont_inherit=True)
    except SyntaxError as error:
        if "await" in (error.msg or "") or "async" in (error.msg or ""):
            raise UsageError(
                f"'{notebook}' awaits something outside a function (cell {cell.number}, line "
                f"{error.lineno}): put it into a function and call asyncio.run with it."
            ) from None
