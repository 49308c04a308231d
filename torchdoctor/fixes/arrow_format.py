"""Answer CSV, JSON and Excel reads by pandas from Arrow files made on first use.

What it does
------------
Answers `pandas.read_csv`, `read_table`, `read_json` and `read_excel` of a file that is read again
from an Arrow IPC file, written at the first read with the same arguments. A copy is used only if it
gives back the same DataFrame: values, dtypes, index, columns.

Why it helps
------------
Text is parsed character by character at every read. An Arrow file holds the columns as they lie in
memory: reading it is hardly more than mapping it.

Risks
-----
None for the result: a file whose size or time of change differs is read anew. The copies take disk,
about as much as the text. Reads from URLs and open files, in chunks, and with functions among the
arguments (`converters`) are left alone.

Make it permanent
-----------------
    pandas.read_csv("labels.csv").to_feather("labels.feather")     # once
    table = pandas.read_feather("labels.feather")

Sources
-------
- Apache Arrow, "Feather File Format": https://arrow.apache.org/docs/python/feather.html
- pandas documentation, "Scaling to large datasets":
  https://pandas.pydata.org/docs/user_guide/scale.html
"""

from __future__ import annotations

import hashlib
import os
import shlex
from typing import Any

from torchdoctor.edits.calls import loader_location
from torchdoctor.facts.lookup import place, training_loaders
from torchdoctor.words import Location, Recording, TableReads
from torchdoctor.words.specs import Example, FixSpec

_LEAST_SHARE = 0.02  # of the training time
_READERS = ("read_csv", "read_table", "read_json", "read_excel")
_FIRST = ("filepath_or_buffer", "path_or_buf", "io")  # the file, where it is given by name
_PLAIN = (str, int, float, bool, bytes, type(None))


def refuses(recording: Recording) -> str | None:
    """Return why Arrow files cannot apply or cannot gain."""
    storage, steps = recording.storage, recording.steps
    tables = storage.tables if storage is not None else []
    if storage is None or not tables:
        return (
            "pandas was not seen reading CSV, JSON or Excel files in the training loop, which a "
            "columnar format would replace."
        )
    if "pyarrow" not in storage.available:
        return "pyarrow is not installed in the program's environment (pip install pyarrow)."
    again = [table for table in tables if table.calls > table.files]
    loader_repeats = any(loader.iterators > 1 for loader in recording.main.loaders)
    if not again and not loader_repeats:
        first = tables[0]
        return (
            f"Each of the {first.files} files was read once: a copy in another format would "
            "answer no second read. Convert them beforehand instead."
        )
    share = _share(tables, recording)
    if steps is not None and share is not None and share < _LEAST_SHARE:
        return f"Parsing text takes only {100 * share:.1f} % of the training time."
    return None


def _share(tables: list[TableReads], recording: Recording) -> float | None:
    """Return the share of the training time that pandas' readers take, of one worker."""
    steps, loaders = recording.steps, training_loaders(recording)
    if steps is None or not steps.total_steps_seen or steps.mean_s <= 0:
        return None
    workers = max(loaders[0].num_workers, 1) if loaders else 1
    total_s = sum(table.total_s for table in tables)
    return total_s / workers / (steps.total_steps_seen * steps.mean_s)


def works_on_s(recording: Recording) -> float | None:
    """Return the seconds of a step in pandas' readers."""
    steps, tables = recording.steps, recording.storage.tables if recording.storage else []
    share = _share(tables, recording)
    return None if steps is None or share is None else share * steps.mean_s


class _Tables:
    """Arrow copies of what was read, in a local folder that all processes share."""

    def __init__(self, folder: str, pandas: Any, pyarrow: Any) -> None:
        self._folder, self._pandas, self._pyarrow = folder, pandas, pyarrow
        self.unequal: set[str] = set()

    def key(self, function: str, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return a name for a read: function, file, its state, arguments. OSError: no such file."""
        status = os.stat(path)
        # The very file: a link may have moved to another of the same size and the same instant.
        very = (status.st_dev, status.st_ino)
        state = (*very, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        read = (function, os.path.abspath(path), state, repr(args), repr(sorted(kwargs.items())))
        text = repr((read, _options(self._pandas)))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]

    def copy(self, key: str) -> Any:
        """Return the table of an earlier read, or None."""
        path = os.path.join(self._folder, key)
        if key in self.unequal or not os.path.exists(path):
            return None
        return self._read(path)

    def _read(self, path: str) -> Any:
        with self._pyarrow.OSFile(path, "rb") as file:
            table = self._pyarrow.ipc.open_file(file).read_all().to_pandas()
        return table.copy()  # Arrow's own memory could not be written to

    def keep(self, key: str, table: Any) -> bool:
        """Write a table, read it back, keep an equal copy; return True if it was equal."""
        if key in self.unequal:
            return False
        path = os.path.join(self._folder, key)
        part = f"{path}.{os.getpid()}.part"
        try:
            arrow = self._pyarrow.Table.from_pandas(table)
            with (
                self._pyarrow.OSFile(part, "wb") as file,
                self._pyarrow.ipc.new_file(file, arrow.schema) as writer,
            ):
                writer.write_table(arrow)
            if _equal(self._read(part), table, self._pandas):
                os.replace(part, path)
                return True
        except Exception:
            pass  # objects that Arrow cannot hold, no room: this one is parsed as before
        self.unequal.add(key)
        if os.path.exists(part):
            os.unlink(part)
        return False


def _options(pandas: Any) -> list[str]:
    """Return the options that change what a reader returns."""
    names = ("future.infer_string", "mode.string_storage", "mode.copy_on_write")
    options = []
    for name in names:
        try:
            options.append(f"{name}={pandas.get_option(name)}")
        except Exception:
            continue  # not in this version
    return options


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
    return all(
        _same_kind(copy.iloc[:, number], table.iloc[:, number]) for number in range(table.shape[1])
    )


def _same_kind(copy: Any, column: Any) -> bool:
    """Return False if assert_frame_equal overlooks a difference: None for NaN, True for 1."""
    ours, theirs = copy.values, column.values
    writable = [getattr(getattr(v, "flags", None), "writeable", None) for v in (ours, theirs)]
    if writable[0] != writable[1]:
        return False
    if str(column.dtype) != "object":
        return True
    return all(type(a) is type(b) for a, b in zip(copy, column, strict=True))


def _plain(value: Any) -> bool:
    """Return True if `repr` says all of an argument: numbers, texts, and collections of them."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(_plain(k) and _plain(v) for k, v in value.items())
    return isinstance(value, _PLAIN)


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Answer pandas' readers of text from Arrow copies."""
    try:
        import pandas
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        program.refuse(f"{error.name} is not installed in the program's environment.")
    tables = _Tables(program.shared_folder("arrow"), pandas, pyarrow)
    program.set_reason("pandas read no file twice.")
    for name in _READERS:
        program.replace(pandas, name, _reader(tables, name, pandas, program))


def _reader(tables: _Tables, name: str, pandas: Any, program: Any) -> Any:
    def make(old: Any) -> Any:
        def read(*args: Any, **kwargs: Any) -> Any:
            key = _key(tables, name, args, kwargs)
            if key is None:
                return old(*args, **kwargs)
            try:
                copy = tables.copy(key)
            except Exception:
                copy = None  # the copy is gone or damaged
            if copy is not None:
                program.applied(function=name)
                return copy
            table = old(*args, **kwargs)
            # Whether the file changed while it was parsed shows in its name.
            unchanged = key == _key(tables, name, args, kwargs)
            if unchanged and type(table) is pandas.DataFrame and not tables.keep(key, table):
                program.set_reason("Arrow does not give back the same table as pandas.")
            return table

        return read

    return make


def _key(tables: _Tables, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    rest = dict(kwargs)
    if args:
        path, args = args[0], args[1:]
    else:
        path = next((rest.pop(key) for key in _FIRST if key in rest), None)
    if not isinstance(path, (str, os.PathLike)) or not (_plain(args) and _plain(rest)):
        return None
    try:
        return tables.key(name, os.fspath(path), args, rest)
    except (OSError, ValueError):
        return None  # a URL, or no such file: pandas says so itself


def _read(recording: Recording) -> TableReads | None:
    """Return the reader that takes most time."""
    tables = recording.storage.tables if recording.storage is not None else []
    return max(tables, key=lambda table: table.total_s, default=None)


def location(recording: Recording) -> Location | None:
    """Return the line that reads, or else where the training loader is made."""
    table = _read(recording)
    return (table and table.location) or loader_location(recording)


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """Return the command that converts the files, and what to write where they are read."""
    table = _read(recording)
    reader = table.function if table is not None else "read_csv"
    example = os.path.join(recording.workload.cwd, table.example) if table is not None else ""
    folder, ending = os.path.dirname(example), os.path.splitext(example)[1]
    if table is None or not ending:
        return (
            f"# once: pandas.{reader}(path).to_feather(path + '.feather')\n"
            f"pandas.read_feather(path + '.feather')  # in place of pandas.{reader}(path)"
        )
    files = f"pathlib.Path({folder!r}).rglob({'*' + ending!r})"
    if table.files == 1:
        files = f"[pathlib.Path({example!r})]"
    each = f"pandas.{reader}(f).to_feather(str(f) + '.feather')"
    code = f"import pandas, pathlib; [{each} for f in {files}]"
    where = place(recording, table.location, "where it is read")
    return (
        f"python -c {shlex.quote(code)}  # once\n"
        f"{where}  pandas.read_feather(f'{{path}}.feather')  # in place of pandas.{reader}(path)"
    )


FIX = FixSpec(
    file=__file__,
    page=__doc__,
    treats=("data-wait", "loader-cpu-bound", "slow-storage"),
    keeps_results="exactly",
    phases=("data_wait_s", "loader_start_s", "before_forward_s"),
    when="launch",
    p_helps=0.7,  # text is parsed again
    setup_s=2.0,  # the first read of each file is parsed as ever, and written besides
    refuses=refuses,
    works_on_s=works_on_s,
    suits=lambda trace: False,
    apply=apply,
    location=location,
    instruction=instruction,
    example=Example(
        code="""
import os, tempfile
import pandas
import torch
from torch.utils.data import DataLoader, Dataset

path = os.path.join(tempfile.mkdtemp(), "rows.csv")
with open(path, "w") as file:
    file.write("name,value\\na,1.5\\nb,2.5\\n")

parsed = []


class Rows(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        table = pandas.read_csv(path)
        return torch.tensor([table["value"][index % 2]], dtype=torch.float32)


import pandas.io.parsers.readers as readers

parse = readers.TextFileReader.read
readers.TextFileReader.read = lambda *a, **k: (parsed.append(1), parse(*a, **k))[1]
model = torch.nn.Linear(1, 1)
for x in DataLoader(Rows(), batch_size=2):
    print(x.flatten().tolist())
    model(x).sum().backward()
print("parsed", len(parsed), "times")
""",
        needs="pandas pyarrow",
        without="[1.5, 2.5]\n[1.5, 2.5]\nparsed 4 times",
        with_fix="[1.5, 2.5]\n[1.5, 2.5]\nparsed 1 times",
    ),
)
