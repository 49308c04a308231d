"""Seeds: one for a program that sets none, and an offset for the seed-noise envelope."""

import functools
import sys


def install(session, watch):
    """Seed `random`, torch and (when imported) numpy; shift the program's own seeds."""
    seed = session.plan.get("seed")
    offset = int(session.plan.get("seed_offset") or 0)
    torch = session.torch
    session.seeded_by_program = False
    if seed is not None:
        torch.manual_seed(seed + offset)
        if "random" in sys.modules:
            sys.modules["random"].seed(seed + offset)

    old = torch.manual_seed

    @functools.wraps(old)
    def manual_seed(seed, *args, **kwargs):
        session.seeded_by_program = True
        return old(_shifted(seed, offset), *args, **kwargs)

    torch.manual_seed = torch.random.manual_seed = manual_seed
    if offset and "random" in sys.modules:
        _shift(sys.modules["random"], "seed", offset)
    watch.when_imported("numpy", session.guarded(lambda numpy: _numpy(numpy, seed, offset)))


def _numpy(numpy, seed, offset):
    if seed is not None:
        numpy.random.seed((seed + offset) % 2**32)
    if offset:
        _shift(numpy.random, "seed", offset)


def _shift(owner, name, offset):
    old = getattr(owner, name)

    @functools.wraps(old)
    def seed(value=None, *args, **kwargs):
        return old(_shifted(value, offset), *args, **kwargs)

    setattr(owner, name, seed)


def _shifted(seed, offset):
    return seed + offset if offset and isinstance(seed, int) else seed
