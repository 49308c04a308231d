"""A pair as a task for another machine, and its result, as bytes (MessagePack)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from torchdoctor import __version__
from torchdoctor.bench.block_plan import TurnBlocks
from torchdoctor.bench.engine import PairTask, PairTimings
from torchdoctor.bench.measurement import Pace, ProgramLaunches
from torchdoctor.launch.launch_spec import FixFile, LaunchSpec
from torchdoctor.observe.window import Window
from torchdoctor.schema import Boundary, Evidence, HostContact, LaunchTiming, Workload
from torchdoctor.schema.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent.parent
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, kw_only=True)
class SentSpec:
    """A `LaunchSpec` on its way; fields as there, and contents by their kind."""

    name: str
    fixes: list[tuple[str, str, dict[str, Any]]]
    contents: dict[str, bytes]
    links: dict[str, str]
    absent: list[str]
    variables: dict[str, str | None]
    workload: Workload | None
    boundary: Boundary | None
    setup_s: float
    settled_after: int
    workers: int

    @classmethod
    def of(cls, spec: LaunchSpec) -> "SentSpec":
        """Return what another machine needs of an arm; files of torchdoctor by their own place."""
        contents = spec.contents
        return cls(
            name=spec.name,
            fixes=[(fix.id, _outward(fix.file), fix.settings) for fix in spec.fixes],
            contents={
                path: content for path, content in contents.items() if isinstance(content, bytes)
            },
            links={path: content for path, content in contents.items() if isinstance(content, str)},
            absent=[path for path, content in contents.items() if content is None],
            variables=dict(spec.variables),
            workload=spec.workload,
            boundary=spec.boundary,
            setup_s=spec.setup_s,
            settled_after=spec.settled_after,
            workers=spec.workers,
        )

    def spec(self) -> LaunchSpec:
        """Return the arm as this machine launches it."""
        fixes = [FixFile(ident, _PACKAGE / file, settings) for ident, file, settings in self.fixes]
        absent: Mapping[str, bytes | str | None] = dict.fromkeys(self.absent)
        return LaunchSpec(
            name=self.name,
            fixes=tuple(fixes),
            contents={**self.contents, **self.links, **absent},
            variables=self.variables,
            workload=self.workload,
            boundary=self.boundary,
            setup_s=self.setup_s,
            settled_after=self.settled_after,
            workers=self.workers,
        )


def _outward(file: Path) -> str:
    """Return the place of a file below the package, where it lies there; else its path."""
    path = file.resolve()
    return str(path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else path)


@dataclass(frozen=True, kw_only=True)
class Launches:
    """How launches of the program are made: fields of `Recorder` and of `ProgramLaunches`."""

    workload: Workload
    seed: int
    timeout_s: float
    forks: bool
    sandbox: bool
    network: bool
    stdin: bytes | None
    files_read: bytes | None
    pace: Pace
    window: Window
    turns: TurnBlocks | None
    cold: bool

    @classmethod
    def of(cls, launches: ProgramLaunches) -> "Launches":
        """Return what another machine needs to make the same launches."""
        recorder = launches.recorder
        return cls(
            workload=recorder.workload,
            seed=recorder.seed,
            timeout_s=recorder.timeout_s,
            forks=not launches.cold,
            sandbox=recorder.sandbox.mode != "none",
            network=recorder.sandbox.network,
            stdin=_read(recorder.folder / "stdin"),
            files_read=_read(recorder.folder / "files-read.txt") if launches.cold else None,
            pace=launches.pace,
            window=launches.window,
            turns=launches.turns,
            cold=launches.cold,
        )


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


@dataclass(frozen=True, kw_only=True)
class Task:
    """A pair that is to be measured by the worker of another machine."""

    version: str = __version__
    launches: Launches
    arms: tuple[SentSpec, SentSpec]
    beside: bool
    swapped: bool
    most_s: float
    seed: int

    @classmethod
    def of(cls, launches: Launches, pair: PairTask, seed: int) -> "Task":
        """Return the task for a pair; `seed`: of the order of its blocks."""
        against, arm = (SentSpec.of(spec) for spec in pair.arms)
        return cls(
            launches=launches,
            arms=(against, arm),
            beside=pair.beside,
            swapped=pair.swapped,
            most_s=pair.most_s,
            seed=seed,
        )

    def pair(self) -> PairTask:
        """Return the pair as this machine measures it."""
        against, arm = (sent.spec() for sent in self.arms)
        return PairTask(
            arms=(against, arm), beside=self.beside, swapped=self.swapped, most_s=self.most_s
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """How the launches of a task ended, and where; `problem`: why none was made."""

    node: str
    kind: str = ""  # of its processor and GPUs
    timings: list[LaunchTiming] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    doubts: list[Evidence] = field(default_factory=list)
    escaped: list[str] = field(default_factory=list)  # files of the user that were changed
    contacts: list[list[HostContact]] = field(default_factory=list)  # of each launch
    problem: Evidence | None = None

    @property
    def measured(self) -> PairTimings:
        """Return the launches as the engine takes them."""
        return PairTimings(timings=self.timings, seconds=self.seconds)


def encoded(record: Task | Result) -> bytes:
    """Return a record as bytes; infinity and NaN are kept."""
    return msgspec.msgpack.encode(record, enc_hook=_plain)


def decoded(data: bytes, kind: type[_Kind], name: str) -> _Kind:
    """Return the record in these bytes; raise UsageError if they hold no such record."""
    try:
        outline = msgspec.msgpack.decode(data)
        version = outline.get("version", __version__)
        if version != __version__:
            raise UsageError(
                f"{name} was written by torchdoctor {version}, and here is {__version__}: install "
                "the same version on every node."
            )
        return msgspec.convert(outline, kind, strict=False)
    except (msgspec.MsgspecError, AttributeError) as error:
        raise UsageError(f"{name} is damaged: {error}.") from error


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
