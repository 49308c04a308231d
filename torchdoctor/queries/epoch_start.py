"""What the beginning of each epoch costs, and what of it is drawing the order of samples. Pure."""

import re

from torchdoctor.queries.lookup import training_loaders
from torchdoctor.schema import Location, Recording, StackSample

_SAMPLER = re.compile(r"utils/data/sampler\.py |data/sampler\.py |data/distributed\.py ")
_DRAWS = re.compile(r"multinomial|randperm|\bpermutation\(|\bshuffle\(|\bchoices?\(")


def start_s(recording: Recording) -> float:
    """Return the seconds of a mean step that beginning an epoch takes, of a loader that stays.

    Workers that each epoch starts again are another cost, with a cure of its own.
    """
    steps = recording.steps
    loaders = training_loaders(recording)
    if steps is None or not loaders:
        return 0.0
    if loaders[0].num_workers and not loaders[0].persistent_workers:
        return 0.0
    if sum(loader.iterators for loader in loaders) < 2:
        return 0.0
    return min(steps.first_batch_s + steps.loader_start_s, steps.data_wait_s)


def sampler_rows(recording: Recording) -> list[StackSample]:
    """Return the samples that show an order being drawn, the most frequent first."""
    rows = [row for row in recording.main.stacks if row.phase == "loader" and _draws(row)]
    return sorted(rows, key=lambda row: -row.count)


def _draws(row: StackSample) -> bool:
    in_torch = _SAMPLER.search(row.leaf) is not None
    return in_torch or (row.location.function == "__iter__" and _DRAWS.search(row.text) is not None)


def sampler_line(recording: Recording) -> Location | None:
    """Return the user's line that the drawing shows at; None: no sample shows it."""
    return next((row.location for row in sampler_rows(recording)), None)


def sample_wait_share(recording: Recording) -> float | None:
    """Return the share of the step that waits for samples, without what an epoch's start takes."""
    steps = recording.steps
    if steps is None or steps.mean_s <= 0:
        return None
    waited_s = steps.data_wait_s - steps.evaluation_wait_s - start_s(recording)
    return min(max(waited_s, 0.0) / steps.mean_s, 1.0)
