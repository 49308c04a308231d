"""States of random generators: the global ones, and those that an object holds."""

import itertools
import random
import sys

SCALARS = (int, float, complex, bool, str, bytes, type(None))
_MOST_OBJECTS = 4096  # that are looked into for generators
_MOST_ITEMS = 64  # of each list or dictionary


def global_states(torch):
    """Return the states of `random`, NumPy (None: not imported) and torch on the CPU."""
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    return random.getstate(), state, torch.get_rng_state()


def restore(torch, states):
    """Put back what `global_states` gave."""
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy"].random.set_state(states[1])
    torch.set_rng_state(states[2])


def same_states(before, after):
    """Return whether nothing was drawn between two calls of `global_states`."""
    same = before[0] == after[0] and bool(before[2].equal(after[2]))
    if not same or before[1] is None or after[1] is None:
        return same and before[1] is after[1]
    pairs = zip(before[1], after[1], strict=True)
    return all(bool((a == b).all()) if hasattr(a, "all") else a == b for a, b in pairs)


def held_generators(roots, torch, depth):
    """Return random generators among objects and what these hold, `depth` levels down."""
    generators = {}
    level = roots
    looked_at = 0
    kinds = (random.Random, torch.Generator)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    for _ in range(depth + 1):
        below = []
        for value in level[: _MOST_OBJECTS - looked_at]:
            looked_at += 1
            if isinstance(value, kinds):
                generators[id(value)] = value
            elif not isinstance(value, (*SCALARS, type, torch.Tensor)):
                below += _held(value)
        level = below
    return list(generators.values())


def _held(value):
    if isinstance(value, (list, tuple)):
        return value[:_MOST_ITEMS]
    if isinstance(value, dict):
        return itertools.islice(value.values(), _MOST_ITEMS)
    return getattr(value, "__dict__", {}).values()
