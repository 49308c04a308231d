"""The event columns that the probe wrote, read back, and which stretches are evaluation.

`events-<number>.bin` holds little-endian int64 rows of four (code, ident, t_ns, value); the codes
are those of `probe.step_log`.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec
import numpy as np

from torchdoctor.probe import step_log
from torchdoctor.schema import Evidence, ProcessFacts, fact

_ROW_BYTES = 4 * 8
_LOADER_MASK = (1 << step_log.LOADER_BITS) - 1
_OF_LOADERS = (
    step_log.LOADER_START_BEGIN,
    step_log.LOADER_START_END,
    step_log.FETCH_BEGIN,
    step_log.FETCH_END,
    step_log.LEARNED,
)
_CALLS_ENDED = (step_log.FORWARD_END, step_log.ENTRY_END)
_FEWEST = 3
_STEADY_SPAN = 0.6  # of all such calls, by time or number
_MINOR = 0.2  # of the other kind's calls: those of an evaluation between
EXHAUSTED = -1
_GRAD_AND_TRAINING = 3


def with_backwards(rows: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the log with backwards if the program made none but computed gradients otherwise.

    Rows are (code, ident, t_ns, value) by time; the second value is `Boundary.learned_by`.
    """
    code = rows[:, 0]
    has_backwards = bool(np.isin(code, (step_log.BACKWARD_BEGIN, step_log.BACKWARD_END)).any())
    steps = bool(np.isin(code, (step_log.OPTIMIZER_BEGIN, step_log.OPTIMIZER_END)).any())
    begins = rows[code == step_log.GRADIENT_BEGIN]
    learned_by = "backward"
    if len(begins) and not has_backwards:
        kind = _backward_of(begins)
        learned_by = step_log.GRADIENT_CALLS[kind]
        rows = rows.copy()
        of_kind = rows[:, 1] == kind
        rows[of_kind & (code == step_log.GRADIENT_BEGIN), :2] = step_log.BACKWARD_BEGIN, 0
        rows[of_kind & (code == step_log.GRADIENT_END), :2] = step_log.BACKWARD_END, 0
    elif (code == step_log.LEARNED).any() and not has_backwards and not steps:
        return _batches_trained_on(rows), "batch"
    elif not has_backwards and not steps and np.isin(code, _CALLS_ENDED).any():
        return rows, "forward"
    return rows[rows[:, 0] != step_log.LEARNED], learned_by


def _backward_of(begins: np.ndarray) -> int:
    """Return the kind of call that ends a step's computation, number in `GRADIENT_CALLS`."""
    kinds, time = begins[:, 1], begins[:, 2]
    counts = np.bincount(kinds, minlength=len(step_log.GRADIENT_CALLS))

    def goes_on(kind: int) -> bool:
        rows = np.flatnonzero(kinds == kind)
        if len(rows) < _FEWEST:
            return False
        first, last = rows[[0, -1]]
        # By calls as well: the first iteration may take longer than many after it.
        by_calls = float(last - first) / (len(kinds) - 1)
        by_time = float(time[last] - time[first]) / max(float(time[-1] - time[0]), 1.0)
        return max(by_calls, by_time) >= _STEADY_SPAN

    plain, functional, _ = range(len(step_log.GRADIENT_CALLS))
    if goes_on(plain) and counts[plain] >= _MINOR * counts[functional]:
        return plain
    # What is differentiated again is a part of something, where anything ends it.
    most = int(np.argmax(counts))
    return next((kind for kind in range(functional, len(counts)) if goes_on(kind)), most)


def _batches_trained_on(rows: np.ndarray) -> np.ndarray:
    """Return the log without batches of loaders whose models are only evaluated."""
    code = rows[:, 0]
    loader = rows[:, 1] & _LOADER_MASK
    learned = np.flatnonzero(code == step_log.LEARNED)
    trains = (code == step_log.FORWARD_BEGIN) & ((rows[:, 3] & 2) > 0)
    last = np.searchsorted(learned, np.flatnonzero(trains)) - 1
    training = loader[learned[last[last >= 0]]]
    kept: np.ndarray = rows[(code != step_log.LEARNED) | np.isin(loader, training)]
    return kept if len(training) else rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Events:
    """What one process logged, ordered by time; four int64 columns of equal length."""

    code: np.ndarray
    ident: np.ndarray
    t_ns: np.ndarray
    value: np.ndarray
    learned_by: str = "backward"  # see `records.Boundary`
    device_clock: bool = False  # times are those at which the GPU came to the events
    host_ns: np.ndarray | None = None  # then: the host's own times

    def __len__(self) -> int:
        return len(self.code)

    @lru_cache(64)  # noqa: B019 - of the last few logs
    def at(self, *codes: int) -> np.ndarray:
        """Return the row numbers of the events with one of these codes, ascending."""
        return np.flatnonzero(np.isin(self.code, codes))

    @cached_property
    def loader(self) -> np.ndarray:
        """Return the loader's number of each row; only meaningful for loader and fetch events."""
        return self.ident & _LOADER_MASK


def _on_device_clock(rows: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return the log with the times at which the GPU came to each event, and if they are known.

    Then the host's times are a fifth column.
    """
    # The host runs ahead of a GPU until the launch queue is full: its times tell nothing of steps.
    marks = rows[rows[:, 0] == step_log.DEVICE]
    rows = rows[rows[:, 0] != step_log.DEVICE]
    if not len(marks) or (marks[:, 3] < 0).any():
        return rows, False
    at = marks[:, 2]
    elapsed = marks[:, 3]
    # A GPU comes to no event before the host recorded it, and to that of an idle moment at once.
    reached = elapsed + (at - elapsed).max()
    rows = rows[rows[:, 2] <= at[-1]]
    rows = np.column_stack([rows, rows[:, 2]])
    after = np.searchsorted(at, rows[:, 2])
    before = np.searchsorted(at, rows[:, 2], side="right") - 1
    earliest = np.where(before < 0, rows[:, 2], reached[before])
    times = np.minimum(np.maximum(rows[:, 2], earliest), reached[after])
    rows[:, 2] = np.maximum.accumulate(times)
    return rows, True


def from_rows(rows: np.ndarray) -> Events:
    """Return the events of an int64 array of shape (n, 4), sorted by time."""
    rows, device_clock = _on_device_clock(rows[np.argsort(rows[:, 2], kind="stable")])
    rows, learned_by = with_backwards(rows)
    code, ident, t_ns, value, *host_ns = np.ascontiguousarray(rows.T)
    return Events(
        code=code,
        ident=ident,
        t_ns=t_ns,
        value=value,
        learned_by=learned_by,
        device_clock=device_clock,
        host_ns=host_ns[0] if device_clock else None,
    )


def read_events(path: Path) -> Events:
    """Read one `events-<number>.bin`; a last row that was cut off by a kill is dropped."""
    return from_rows(_whole_numbers(path, "<i8", _ROW_BYTES).astype(np.int64).reshape(-1, 4))


def join_loaders(events: Events, facts: ProcessFacts) -> Events:
    """Return the log with the loaders that a line makes one after another as one, the first."""
    joined = _made_anew(events, facts)
    if not joined:
        return events
    of_loaders = np.isin(events.code, _OF_LOADERS)
    ident = events.ident.copy()
    for number, first in joined.items():
        ident[of_loaders & (events.loader == number)] += first - number
    return replace(events, ident=ident)


def _made_anew(events: Events, facts: ProcessFacts) -> dict[int, int]:
    """Return the first loader of its line for each one that followed it there and trained."""
    lines = {
        loader.ident: (loader.location.file, loader.location.line) if loader.location else None
        for loader in facts.loaders
    }
    fetches = events.at(step_log.FETCH_BEGIN)
    learned = learning_rows(events)
    if not len(fetches):  # the log of a launch that is timed
        fetches = events.at(step_log.FETCH_END)
        learned = events.at(step_log.BOUNDARY)
    first_of: dict[tuple[str, int], int] = {}
    ended: dict[tuple[str, int], int] = {}  # the last fetch of the last one of a line
    anew: dict[int, int] = {}
    latest: tuple[str, int] | None = None  # line that made one anew
    for ident in dict.fromkeys(events.loader[fetches].tolist()):
        rows = fetches[events.loader[fetches] == ident]
        line = lines.get(ident, latest)  # the newest may not be told of yet
        if line is None or not _count(learned, rows[:1], rows[-1:] + 2).any():
            continue  # it evaluates, say, with batches of a loader made by the same function
        if line not in first_of:
            first_of[line] = ident
        elif rows[0] > ended[line]:
            anew[ident], latest = first_of[line], line
        else:
            continue  # two side by side
        ended[line] = int(rows[-1])
    return anew


def read_channel(folder: Path) -> tuple[dict[int, Events], dict[int, ProcessFacts], list[Evidence]]:
    """Return events and facts by pid of a channel folder, and which files are not readable."""
    facts: dict[int, ProcessFacts] = {}
    doubts: list[Evidence] = []
    events = {_pid_of(path): read_events(path) for path in sorted(folder.glob("events-*.bin"))}
    for path in sorted(folder.glob("process-*.json")):
        try:
            facts[_pid_of(path)] = msgspec.json.decode(path.read_bytes(), type=ProcessFacts)
        except (msgspec.DecodeError, OSError) as error:
            doubts.append(fact("probe-file-unreadable", file=path.name, error=str(error)))
    events = {
        pid: join_loaders(log, facts[pid]) if pid in facts else log for pid, log in events.items()
    }
    return events, facts, doubts


def read_observed(
    folder: Path,
) -> tuple[dict[int, Events], dict[int, ProcessFacts], list[Evidence]]:
    """Return, as `read_channel`, what was before a profiler window; all where there was none."""
    events, facts, doubts = read_channel(folder)
    for path in sorted(folder.glob("observed-*.json")):
        facts[_pid_of(path)] = msgspec.json.decode(path.read_bytes(), type=ProcessFacts)
    return {pid: _until_window(log) for pid, log in events.items()}, facts, doubts


def _until_window(log: Events) -> Events:
    ends = log.at(step_log.OBSERVED)
    if not len(ends):
        return log
    columns = {name: getattr(log, name)[: ends[0]] for name in ("code", "ident", "t_ns", "value")}
    host_ns = None if log.host_ns is None else log.host_ns[: ends[0]]
    return replace(log, **columns, host_ns=host_ns)


def read_losses(path: Path) -> np.ndarray:
    """Read one `losses-<number>.bin`: float64, one per backward in order."""
    return _whole_numbers(path, "<f8", 8).astype(np.float64)


def read_decisions(path: Path) -> list[list[int]]:
    """Read one `decisions-<number>.bin`: of each output in order, what it decided."""
    packed = _whole_numbers(path, "<i8", 16).reshape(-1, 2)
    outputs: dict[int, list[int]] = {}
    for number, choice in packed.tolist():
        outputs.setdefault(number, []).append(choice)
    return [outputs[number] for number in sorted(outputs)]


def _whole_numbers(path: Path, dtype: str, row_bytes: int) -> np.ndarray:
    packed = path.read_bytes() if path.exists() else b""
    return np.frombuffer(packed[: len(packed) // row_bytes * row_bytes], dtype=dtype)


def _pid_of(path: Path) -> int:
    return int(path.stem.split("-")[1].split(".")[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Units:
    """The run cut at each fetch and each start of a loader; columns of shape (units,)."""

    start: np.ndarray  # row of the FETCH_BEGIN or LOADER_START_BEGIN
    stop: np.ndarray  # row where the next unit starts (number of events for the last)
    loader: np.ndarray
    is_fetch: np.ndarray
    fetched_row: np.ndarray  # row of the FETCH_END; -1 where there is none
    value: np.ndarray  # samples in the batch, EXHAUSTED, or -2 unknown
    learns: np.ndarray  # a backward or an optimizer step happened in it
    forwards: np.ndarray
    training_forwards: np.ndarray  # with gradients and in training mode


def learning_rows(events: Events) -> np.ndarray:
    """Return the rows of backwards and optimizer steps, or their ends; else of learned batches.

    Where nothing is learned, the ends of forwards and of known entry points stand for them.
    """
    if events.learned_by == "forward":
        return events.at(*_CALLS_ENDED)
    begins = events.at(step_log.BACKWARD_BEGIN, step_log.OPTIMIZER_BEGIN, step_log.LEARNED)
    return begins if len(begins) else events.at(step_log.BACKWARD_END, step_log.OPTIMIZER_END)


@lru_cache(4)
def cut_units(events: Events) -> Units:
    """Cut the run at its fetches."""
    start = events.at(step_log.FETCH_BEGIN, step_log.LOADER_START_BEGIN)
    stop = np.append(start, len(events))[1:]
    is_fetch = events.code[start] == step_log.FETCH_BEGIN
    fetched = _first_at_or_after(events.at(step_log.FETCH_END), start)
    fetched = np.where(is_fetch & (fetched < stop), fetched, -1)
    forwards = events.at(step_log.FORWARD_BEGIN)
    training = forwards[(events.value[forwards] & _GRAD_AND_TRAINING) == _GRAD_AND_TRAINING]
    return Units(
        start=start,
        stop=stop,
        loader=events.loader[start],
        is_fetch=is_fetch,
        fetched_row=fetched,
        value=np.where(fetched >= 0, events.value[fetched], -2),
        learns=_count(learning_rows(events), start, stop) > 0,
        forwards=_count(forwards, start, stop),
        training_forwards=_count(training, start, stop),
    )


@lru_cache(4)
def evaluation_units(units: Units) -> np.ndarray:
    """Return True if each unit is evaluation; bool of shape (units,)."""
    of_learning_loader = np.isin(units.loader, units.loader[units.learns])
    without_learning = units.is_fetch & (units.value != EXHAUSTED) & ~units.learns
    # In a log without phases only what is never learned from is told apart.
    without_learning &= units.forwards > 0 if units.forwards.any() else ~of_learning_loader
    # A loss summed over several batches before its backward also has units that learn nothing:
    # those run their forwards in training mode and with gradients.
    trains_forward = of_learning_loader & (units.training_forwards > 0)
    return np.asarray(without_learning & ~trains_forward)


def evaluates_training_loader(events: Events) -> bool:
    """Return True if batches of a loader that is learned from were evaluated only."""
    units = cut_units(events)
    learning = np.isin(units.loader, units.loader[units.learns])
    return bool((evaluation_units(units) & learning).any())


def evaluation_mask(events: Events) -> np.ndarray:
    """Return True if the stretch after each event is evaluation; bool of shape (n,).

    A validation loader, the training loader iterated for evaluation, and without any loader an
    eval-mode forward of the model that also trains: no frozen teacher, no batch fetched ahead.
    """
    mask = np.zeros(len(events), dtype=bool)
    units = cut_units(events)
    if events.learned_by == "forward":
        return mask
    chosen = evaluation_units(units)
    only_evaluates = np.setdiff1d(units.loader[chosen], units.loader[units.learns])
    ends_or_starts = np.isin(units.loader, only_evaluates) & ~chosen
    to_its_end = chosen | ~(units.is_fetch | units.learns)
    stops = np.where(to_its_end, units.stop, units.fetched_row)
    for unit in np.flatnonzero(chosen | ends_or_starts):
        mask[units.start[unit] : max(stops[unit], units.start[unit])] = True
    # Eval-mode forwards of models that also train, with the stretch before each.
    begins = events.at(step_log.FORWARD_BEGIN)
    training = (events.value[begins] & 2) > 0
    trained = np.isin(events.ident[begins], events.ident[begins[training]])
    evaluated = begins[~training & trained]
    ends = _first_at_or_after(events.at(step_log.FORWARD_END), evaluated)
    for begin, stop in zip(evaluated, ends, strict=True):
        mask[max(begin - 1, 0) : stop] = True
    return mask


def _first_at_or_after(sorted_rows: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the first of `sorted_rows` at or after each row; a huge number if there is none."""
    padded = np.append(sorted_rows, np.iinfo(np.int64).max)
    return padded[np.searchsorted(sorted_rows, rows)]


def _count(sorted_rows: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    return np.searchsorted(sorted_rows, stop) - np.searchsorted(sorted_rows, start)
