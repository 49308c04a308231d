"""Which stretches of a run are evaluation: batches or forward passes that nothing is learned from.

A validation loader, the training loader iterated for evaluation, and without any loader an
eval-mode forward of the model that also trains: no frozen teacher and no batch fetched ahead.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from torchdoctor.observe.events import Events
from torchdoctor.probe import step_log

EXHAUSTED = -1
_GRAD_AND_TRAINING = 3


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
    """Return the rows of backwards and optimizer steps, or their ends; else of learned batches."""
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
    evaluated: np.ndarray = without_learning & ~trains_forward
    return evaluated


def evaluates_training_loader(events: Events) -> bool:
    """Return True if batches of a loader that is learned from were evaluated only."""
    units = cut_units(events)
    learning = np.isin(units.loader, units.loader[units.learns])
    return bool((evaluation_units(units) & learning).any())


def evaluation_mask(events: Events) -> np.ndarray:
    """Return True if the stretch after each event is evaluation; bool of shape (n,)."""
    mask, units = np.zeros(len(events), dtype=bool), cut_units(events)
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
