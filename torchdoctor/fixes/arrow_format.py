"""Answer CSV, JSON and Excel reads by pandas from Arrow files made on first use.

## What it does
Answers `pandas.read_csv`, `read_table`, `read_json` and `read_excel` of a file that is read again
from an Arrow IPC file, if that gives back the same DataFrame: values, dtypes, index, columns.

## Why it helps
Text is parsed character by character at every read. An Arrow file holds the columns as they lie in
memory: reading it is hardly more than mapping it.

## Risks
A changed file is read anew. The copies take disk, about as much as the text. Reads from URLs and
open files, in chunks, and with functions among the arguments are left alone.

## Make it permanent
    pandas.read_csv("labels.csv").to_feather("labels.feather")     # once
    table = pandas.read_feather("labels.feather")

## Sources
- Apache Arrow, "Feather File Format": https://arrow.apache.org/docs/python/feather.html
"""

import functools
import os
import shlex
from contextlib import suppress
from typing import Any

from torchdoctor.edits.calls import loader_location
from torchdoctor.queries.lookup import place, training_loaders
from torchdoctor.queries.touched import WAITS, calls, phases
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    Location,
    Recording,
    Settings,
    TableReads,
    Touches,
    fact,
)

_LEAST_SHARE = 0.02  # of the training time
_READERS = ("read_csv", "read_table", "read_json", "read_excel")
_FIRST = ("filepath_or_buffer", "path_or_buf", "io")  # the file, where it is given by name
_PLAIN = (str, int, float, bool, bytes, type(None))


def _tables(recording: Recording) -> list[TableReads]:
    return recording.storage.tables if recording.storage is not None else []


def refuses(recording: Recording) -> Evidence | None:
    tables = _tables(recording)
    if recording.storage is None or not tables:
        return fact("no-tables-read")
    if "pyarrow" not in recording.storage.available:
        return fact("no-pyarrow")
    again = any(table.calls > table.files for table in tables)
    if not again and not any(loader.iterators > 1 for loader in recording.main.loaders):
        return fact("read-once", files=tables[0].files)
    share = _share(recording)
    if share is not None and share < _LEAST_SHARE:
        return fact("parsing-hardly-matters", share=share)
    return None


def _share(recording: Recording) -> float | None:
    """Return the share of the training time that pandas' readers take, of one worker."""
    steps = recording.steps
    loaders = training_loaders(recording)
    if steps is None or not steps.total_steps_seen or steps.mean_s <= 0:
        return None
    workers = max(loaders[0].num_workers, 1) if loaders else 1
    total_s = sum(table.total_s for table in _tables(recording))
    return total_s / workers / (steps.total_steps_seen * steps.mean_s)


def touches(recording: Recording) -> Touches:
    steps = recording.steps
    share = _share(recording)
    waited = phases(recording, *WAITS, "before_forward_s")
    if steps is None or share is None or not waited:
        return waited
    return calls(recording, min(share * steps.mean_s, waited[0].seconds), "reading tables")


class _Copies:
    """Arrow copies of what was read, in a local folder that all processes share."""

    def __init__(self, program: Any, pandas: Any, pyarrow: Any) -> None:
        self._program = program
        self._pandas = pandas
        self._pyarrow = pyarrow
        self._folder = program.shared_folder("arrow")
        self._unequal: set[str] = set()

    def key(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return a name for a read: function, file, its state, arguments; None: no plain read."""
        rest = dict(kwargs)
        first, *more = args or [next((rest.pop(key) for key in _FIRST if key in rest), None)]
        if not isinstance(first, (str, os.PathLike)) or not _plain((more, rest)):
            return None
        try:
            path = os.path.abspath(os.fspath(first))
            return str(self._program.name_of(path, function, more, sorted(rest.items())))
        except (OSError, ValueError):
            return None  # a URL, or no such file: pandas says so itself

    def copy(self, key: str) -> Any:
        """Return the table of an earlier read, or None."""
        path = os.path.join(self._folder, key)
        if key in self._unequal or not os.path.exists(path):
            return None
        with suppress(Exception):  # the copy is gone or damaged
            return self._read(path)

    def _read(self, path: str) -> Any:
        with self._pyarrow.OSFile(path, "rb") as file:
            table = self._pyarrow.ipc.open_file(file).read_all().to_pandas()
        return table.copy()  # Arrow's own memory could not be written to

    def keep(self, key: str, table: Any) -> bool:
        """Write a table, read it back, keep an equal copy; return True if it was equal."""
        if key in self._unequal:
            return False
        path = os.path.join(self._folder, key)
        part = f"{path}.{os.getpid()}.part"
        with suppress(Exception):  # objects that Arrow cannot hold, no room: parsed as before
            arrow = self._pyarrow.Table.from_pandas(table)
            with (
                self._pyarrow.OSFile(part, "wb") as file,
                self._pyarrow.ipc.new_file(file, arrow.schema) as writer,
            ):
                writer.write_table(arrow)
            if _equal(self._read(part), table, self._pandas):
                os.replace(part, path)
                return True
        self._unequal.add(key)
        with suppress(OSError):
            os.unlink(part)
        return False


def _equal(copy: Any, table: Any, pandas: Any) -> bool:
    """Return True if two tables are the same in values, dtypes, index, columns and attributes."""
    try:
        pandas.testing.assert_frame_equal(
            copy, table, check_exact=True, check_freq=True, check_flags=True, obj="copy"
        )
    except AssertionError:
        return False
    if copy.attrs != table.attrs or type(copy.index) is not type(table.index):
        return False
    return all(_same_kind(copy.iloc[:, n], table.iloc[:, n]) for n in range(table.shape[1]))


def _same_kind(copy: Any, column: Any) -> bool:
    """Return False if assert_frame_equal overlooks a difference: None for NaN, True for 1."""
    flags = [getattr(series.values, "flags", None) for series in (copy, column)]
    if len({getattr(flag, "writeable", None) for flag in flags}) > 1:
        return False
    if str(column.dtype) != "object":
        return True
    return all(type(a) is type(b) for a, b in zip(copy, column, strict=True))


def _plain(value: Any) -> bool:
    """Return True if `repr` says all of an argument: numbers, texts, and collections of them."""
    if isinstance(value, dict):
        return _plain([*value.keys(), *value.values()])
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_plain, value))
    return isinstance(value, _PLAIN)


def apply(torch: Any, settings: Settings, program: Any) -> None:
    try:
        import pandas
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        program.refuse("package-not-installed", package=error.name)
    copies = _Copies(program, pandas, pyarrow)

    def reader(name: str, old: Any) -> Any:
        def read(*args: Any, **kwargs: Any) -> Any:
            key = copies.key(name, args, kwargs)
            copy = None if key is None else copies.copy(key)
            if copy is not None:
                program.applied(function=name)
                return copy
            table = old(*args, **kwargs)
            if key is None or type(table) is not pandas.DataFrame:
                return table
            # Whether the file changed while it was parsed shows in its name.
            if key == copies.key(name, args, kwargs) and not copies.keep(key, table):
                program.set_reason("another-table")
            return table

        return read

    program.set_reason("no-file-read-twice")
    for name in _READERS:
        program.replace(pandas, name, functools.partial(reader, name))


def _slowest(recording: Recording) -> TableReads | None:
    return max(_tables(recording), key=lambda table: table.total_s, default=None)


def location(recording: Recording) -> Location | None:
    table = _slowest(recording)
    return (table and table.location) or loader_location(recording)


def instruction(settings: Settings, recording: Recording) -> str:
    table = _slowest(recording)
    ending = os.path.splitext(table.example)[1] if table is not None else ""
    if table is None or not ending:
        reader = table.function if table is not None else "read_csv"
        return FIX.permanent_form.replace("read_csv", reader)
    example = os.path.join(recording.workload.cwd, table.example)
    files = f"pathlib.Path({os.path.dirname(example)!r}).rglob({'*' + ending!r})"
    if table.files == 1:
        files = f"[pathlib.Path({example!r})]"
    reader = f"pandas.{table.function}"
    code = f"import pandas, pathlib; [{reader}(f).to_feather(str(f) + '.feather') for f in {files}]"
    where = place(recording, table.location, "where it is read")
    return (
        f"python -c {shlex.quote(code)}  # once\n"
        f"{where}  pandas.read_feather(f'{{path}}.feather')  # in place of {reader}(path)"
    )


FIX = FixSpec(
    name="read tables from Arrow files",
    treats=("data-wait", "loader-cpu-bound", "slow-storage"),
    keeps_results="exactly",
    phases=("data_wait_s", "loader_start_s", "before_forward_s"),
    touches=touches,
    p_helps=0.7,  # text is parsed again
    setup_s=2.0,  # the first read of each file is parsed as ever, and written besides
    refuses=refuses,
    sentences={
        "read-once": "Each of the {files} files was read once: convert them beforehand.",
        "parsing-hardly-matters": "Parsing text takes only {share:percent} of the time.",
        "no-tables-read": "pandas was not seen reading CSV, JSON or Excel files in the loop.",
        "no-pyarrow": "pyarrow is not installed in the program's environment (pip install "
        "pyarrow).",
        "another-table": "Arrow does not give back the same table as pandas.",
        "no-file-read-twice": "pandas read no file twice.",
    },
    suits=lambda trace: False,
    apply=apply,
    location=location,
    instruction=instruction,
    example=Example(
        code="""
import pathlib, tempfile
import pandas
import pandas.io.parsers.readers as readers
from torch.utils.data import DataLoader
path = pathlib.Path(tempfile.mkdtemp(), "rows.csv")
path.write_text("name,value\\na,1.5\\nb,2.5\\n")
parse, parsed = readers.TextFileReader.read, []
readers.TextFileReader.read = lambda *a, **k: (parsed.append(1), parse(*a, **k))[1]
def rows(numbers):
    values = [pandas.read_csv(path)["value"][number % 2] for number in numbers]
    return torch.tensor(values).float().unsqueeze(1)
model = torch.nn.Linear(1, 1)
for x in DataLoader(range(4), batch_size=2, collate_fn=rows):
    print(x.flatten().tolist())
    model(x).sum().backward()
print("parsed", len(parsed), "times")
""",
        needs="pandas pyarrow",
        without="[1.5, 2.5]\n[1.5, 2.5]\nparsed 4 times",
        with_fix="[1.5, 2.5]\n[1.5, 2.5]\nparsed 1 times",
    ),
)
