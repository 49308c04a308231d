"""Seeds: one for a program that sets none, and an offset for the seed-noise envelope."""

import random

from .wrapping import wrap


def install(session, watch):
    """Seed `random`, torch and (when imported) numpy; shift the program's own seeds."""
    seed, torch = session.plan.get("seed"), session.torch
    offset = int(session.plan.get("seed_offset") or 0)

    def shifted(value):
        return value + offset if offset and isinstance(value, int) else value

    def shift(old):
        return lambda value=None, *args, **kwargs: old(shifted(value), *args, **kwargs)

    def make(old):
        def manual_seed(seed, *args, **kwargs):
            session.seeded_by_program = True
            return old(shifted(seed), *args, **kwargs)

        return manual_seed

    if seed is not None:
        torch.manual_seed(seed + offset)
        random.seed(seed + offset)
    wrap(torch, "manual_seed", make)
    torch.random.manual_seed = torch.manual_seed
    if offset:
        wrap(random, "seed", shift)

    def numpy_imported(numpy):
        if seed is not None:
            numpy.random.seed((seed + offset) % 2**32)
        if offset:
            wrap(numpy.random, "seed", shift)

    watch.when_imported("numpy", session.guarded(numpy_imported))
