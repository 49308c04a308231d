"""Seeds: what a launch changes of the program so that it can be compared.

A program that sets no seed gets one, and an offset shifts all for the seed-noise envelope.
"""

import random

from .wrapping import wrap


def install(session, watch):
    """Seed `random`, torch and (when imported) numpy; shift the program's own seeds."""
    seed, torch = session.plan.get("seed"), session.torch
    offset = int(session.plan.get("seed_offset") or 0)

    def shifted(value):
        return value + offset if isinstance(value, int) else value

    def shift(old):
        return lambda value=None, *args, **kwargs: old(shifted(value), *args, **kwargs)

    if seed is not None:
        torch.manual_seed(seed + offset)
        random.seed(seed + offset)
    if offset:
        wrap(torch, "manual_seed", lambda old: lambda seed: old(shifted(seed)))
        torch.random.manual_seed = torch.manual_seed
        wrap(random, "seed", shift)

    def numpy_imported(numpy):
        if seed is not None:
            numpy.random.seed((seed + offset) % 2**32)
        if offset:
            wrap(numpy.random, "seed", shift)

    watch.when_imported("numpy", session.guarded(numpy_imported))
