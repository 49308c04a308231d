"""Open an archive, a file or a connection once in each process, and keep it.

## What it does
Answers `zipfile.ZipFile(path)`, `lmdb.open(path)` and `sqlite3.connect(path)` with what the first
call with the same arguments gave in the same process, while the file is the same. Only for reading;
closing it closes nothing. `torch.load(path)` and `np.load(path)` too, of 1 GB of files at most.

## Why it helps
Opening an archive reads and parses its whole directory, and a connection has a set-up of its own.
In `__getitem__` that is paid for each sample. A shard is read as a whole for each of its samples.

## Risks
What is open must be opened by each worker for itself, not before they are started. A file that is
replaced meanwhile is opened again here; in the source that is for you to do. What is loaded stays
in memory, and code that writes to it would find its changes again.

## Make it permanent
    def __getitem__(self, index):
        if self.archive is None:               # in __init__: self.archive = None
            self.archive = zipfile.ZipFile(self.path)   # at the first sample of each worker
        raw = self.archive.read(self.names[index])

## Sources
- Python documentation, zipfile: https://docs.python.org/3/library/zipfile.html
"""

import os
import re
import sys
import zipfile
from typing import Any

from torchdoctor.edits import Edit, OpenedOnceEdit
from torchdoctor.fixes._parts import SampledLines
from torchdoctor.schema import Example, FixSpec, Recording, Settings, StackSample

_OPENERS = (("lmdb", "open"), ("sqlite3", "connect"), ("torch", "load"), ("numpy", "load"))
_OPENS = re.compile(
    r"\bZipFile\(|\blmdb\.open\(|\bsqlite3\.connect\(|\b(torch|np|numpy)\.load\((?!.*mmap)"
)
_MOST_LOADED = 2**30  # bytes of files
_READS = (None, "r", "rb")


def _rows(recording: Recording) -> list[StackSample]:
    return [row for row in recording.main.stacks if _OPENS.search(row.text)]


_LINES = SampledLines(
    rows=_rows,
    label="opening files",
    none="No line was seen that opens a file or a connection.",
    moves="reads",
)


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    lines = dict.fromkeys((row.location.file, row.location.line) for row in _rows(recording))
    return [OpenedOnceEdit(file=file, line=line) for file, line in lines]


class _Open:
    """What is open, and is not closed by those who use it."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def close(self) -> None:
        """Leave it open."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __getitem__(self, key: Any) -> Any:
        return self._opened[key]

    def __contains__(self, key: Any) -> bool:
        return key in self._opened

    def __iter__(self) -> Any:
        return iter(self._opened)

    def __len__(self) -> int:
        return len(self._opened)


class _Kept:
    """What was opened or loaded, by its file as it was then."""

    def __init__(self, program: Any) -> None:
        self.program = program
        self.known: dict[Any, Any] = {}
        self.loaded_bytes = 0

    def key_of(self, opener: str, args: Any, kwargs: Any) -> Any:
        """Return what tells a file in its state now from others; None: it is not to be kept."""
        if not args or not isinstance(args[0], (str, os.PathLike)):
            return None
        if opener == "load" and (len(args) > 1 or kwargs.get("mmap") or kwargs.get("mmap_mode")):
            return None
        has_mode = len(args) > 1 and opener in ("ZipFile", "open")
        if (args[1] if has_mode else kwargs.get("mode")) not in _READS:
            return None
        try:
            state = os.stat(args[0])
            key = (os.getpid(), opener, args, tuple(sorted(kwargs.items())))
            hash(key)
        except (OSError, TypeError):
            return None
        return (*key, state.st_ino, state.st_mtime_ns, state.st_size)

    def make_init(self, old: Any) -> Any:
        def init(archive: Any, *args: Any, **kwargs: Any) -> None:
            key = self.key_of("ZipFile", args, kwargs)
            if key in self.known:
                vars(archive).update(self.known[key])
                self.program.applied()
                return
            old(archive, *args, **kwargs)
            if key is not None:
                archive._fileRefCnt += 1  # so that closing it closes no file
                self.known[key] = dict(vars(archive))

        return init

    def making(self, name: str) -> Any:
        keep = self.keep_loaded if name == "load" else self.keep_open

        def make(old: Any) -> Any:
            def opened(*args: Any, **kwargs: Any) -> Any:
                key = self.key_of(name, args, kwargs)
                if key in self.known:
                    self.program.applied()
                    return self.known[key]
                result = old(*args, **kwargs)
                return result if key is None else keep(key, result)

            return opened

        return make

    def keep_open(self, key: Any, result: Any) -> Any:
        self.known[key] = _Open(result)
        return self.known[key]

    def keep_loaded(self, key: Any, result: Any) -> Any:
        closes = hasattr(result, "close")  # an archive of arrays, which its user closes
        if not closes and self.loaded_bytes + key[-1] <= _MOST_LOADED:
            self.loaded_bytes += key[-1]
            self.known[key] = result
        return result


def apply(torch: Any, settings: Settings, program: Any) -> None:
    kept = _Kept(program)

    def replace() -> None:
        for module, name in _OPENERS:
            if module in sys.modules and module not in replaced:
                replaced.add(module)
                program.replace(sys.modules[module], name, kept.making(name))

    replaced: set[str] = set()
    program.set_reason("no-file-opened-again")
    program.replace(zipfile.ZipFile, "__init__", kept.make_init)
    replace()
    program.at_first_batch(replace, lambda: None)  # what was imported since


FIX: FixSpec = FixSpec(
    name="keep files open",
    treats=("hot-call", "data-wait", "loader-cpu-bound", "inline-batch-preparation"),
    keeps_results="exactly",
    when="between steps",
    p_helps=0.7,
    needs_finding=True,
    offered_untried=False,
    refuses=_LINES.refuses,
    sentences=_LINES.sentences
    | {
        "no-file-opened-again": "No file was opened again with the same arguments.",
    },
    suits=lambda trace: False,
    touches=_LINES.touches,
    apply=apply,
    location=_LINES.location,
    edits=edits,
    instruction=lambda settings, recording: FIX.permanent_form,
    example=Example(
        code="""
import zipfile
with zipfile.ZipFile("a.zip", "w") as archive:
    archive.writestr("x", "1 2 3")
reads, read = [], zipfile.ZipFile._RealGetContents
zipfile.ZipFile._RealGetContents = lambda self: reads.append(1) or read(self)
model, texts = torch.nn.Linear(1, 1), set()
for _ in range(4):
    with zipfile.ZipFile("a.zip") as archive:
        texts.add(archive.read("x"))
    model(torch.ones(1)).sum().backward()
print(texts, "times read:", len(reads))
""",
        without="{b'1 2 3'} times read: 4",
        with_fix="{b'1 2 3'} times read: 1",
    ),
)
