"""Seeds, and experiment trackers: what a launch changes of the program so that it can be compared.

A program that sets no seed gets one, and an offset shifts all for the seed-noise envelope. Nothing
that a launch logs may leave the machine or reach real results: the launch's environment switches
trackers offline, and this covers scripts that ask for more.
"""

import os
import random

from .wrapping import wrap


def install_seeds(session, watch):
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


def install_trackers(session, watch):
    """Watch for the trackers' imports."""
    address = "file://" + os.path.join(session.channel, "trackers")

    def mlflow(module):
        module.set_tracking_uri(address)
        wrap(module, "set_tracking_uri", lambda old: lambda *_, **__: old(address))

    for name, switch_offline in (
        ("wandb", lambda module: _always_offline(module, "init", unless="disabled")),
        ("mlflow", mlflow),
        ("comet_ml", _comet),
        ("neptune", lambda module: _always_offline(module, "init_run", "init")),
        ("clearml", lambda module: module.Task.set_offline(offline_mode=True)),
        ("swanlab", lambda module: _always_offline(module, "init")),
    ):
        watch.when_imported(name, session.guarded(switch_offline))


def _always_offline(module, *names, unless=None):
    def make(old):
        def init(*args, **kwargs):
            if unless is None or kwargs.get("mode") != unless:
                kwargs["mode"] = "offline"
            return old(*args, **kwargs)

        return init

    for name in names:
        wrap(module, name, make)


def _comet(module):
    for name in ("Experiment", "ExistingExperiment"):
        setattr(module, name, getattr(module, "Offline" + name, getattr(module, name, None)))
