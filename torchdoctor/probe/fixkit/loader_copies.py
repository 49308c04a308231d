"""The parts that a second DataLoader over the data of one that is in use is made of.

Data set, collate and worker functions are the very ones; the sampler is a copy and generators are
clones, so that nothing moves that the program's own loader draws from or counts.
"""

import copy
import inspect
import itertools

from ..measure.nested import parts_of
from . import random_states

_DEPTH = 3  # of attributes whose generators are cloned, and of what a data set holds


def arguments_of(loader, torch):
    """Return the arguments of `DataLoader.__init__` that would make this loader as it is now."""
    cls = torch.utils.data.dataloader.DataLoader
    parameters = inspect.signature(cls.__init__).parameters
    arguments = {
        name: getattr(loader, name, parameter.default)
        for name, parameter in parameters.items()
        if name != "self"
    }
    arguments["shuffle"] = None  # what it said is its sampler now
    if not loader.num_workers:
        arguments["prefetch_factor"] = None
    return arguments


def second(loader, arguments, later, torch, make):
    """Return a loader of the same class, not iterated yet.

    Args:
        loader: the program's.
        arguments: of `arguments_of`, with what a fix has changed.
        later: batches that its first pass leaves out.
        torch: the user's torch module.
        make: torch's own `DataLoader.__init__`.

    Raises:
        Exception: its sampler cannot be copied.
    """
    arguments = {**arguments, "sampler": None, "batch_sampler": None}
    batched = loader.batch_sampler is not None
    name = "batch_sampler" if batched else "sampler"
    sampler, generator = _copied(loader, getattr(loader, name), torch)
    arguments["generator"] = generator
    if not isinstance(loader.dataset, torch.utils.data.IterableDataset):
        arguments[name] = _LaterOn(sampler, later)
        if batched:
            arguments.update(batch_size=1, drop_last=False)  # its sampler knows both
    made = type(loader).__new__(type(loader))
    make(made, **arguments)
    for key, value in vars(loader).items():
        made.__dict__.setdefault(key, value)  # of a subclass
    return made


class _LaterOn:
    """A sampler whose first pass begins where the program's own one stands."""

    def __init__(self, sampler, later):
        self._sampler, self._later = sampler, later

    def __iter__(self):
        later, self._later = self._later, 0
        return itertools.islice(iter(self._sampler), later, None)

    def __len__(self):
        return len(self._sampler)


def _copied(loader, sampler, torch):
    """Return copies of the sampler and of the loader's generator, which both may share."""
    # What the data set holds is shared: a sampler that knows the data must not copy it.
    shared = {id(held): held for held in _held_by(loader.dataset, torch)}
    own = random_states.held_generators([sampler, loader.generator], torch, _DEPTH)
    for held in own:
        if isinstance(held, torch.Generator):  # older ones know no copy
            shared[id(held)] = clone = torch.Generator(device=held.device)
            clone.set_state(held.get_state())
    try:
        return copy.deepcopy((sampler, loader.generator), shared)
    except Exception as error:
        raise ValueError("its sampler cannot be copied: %s" % error) from error


def _held_by(dataset, torch):
    """Return the data set, what it wraps, and what lies in their attributes."""
    plain = (*random_states.SCALARS, torch.Generator)
    values, level = [], [dataset]
    for _ in range(_DEPTH):
        values += level
        below = [part for value in level for part in parts_of(value, torch) or ()]
        held = [x for value in level for x in getattr(value, "__dict__", {}).values()]
        level = below + [value for value in held if not isinstance(value, plain)]
    return values
