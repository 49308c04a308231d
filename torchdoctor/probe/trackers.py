"""Experiment trackers: nothing that a launch logs may leave the machine or reach real results.

The launch's environment switches trackers offline; this covers scripts that ask for more.
"""

import os

from .wrapping import wrap


def install(session, watch):
    """Watch for the trackers' imports, unless the plan says otherwise."""
    if not session.plan.get("trackers_offline", True):
        return
    address = "file://" + os.path.join(session.channel, "trackers")

    def mlflow(module):
        module.set_tracking_uri(address)
        wrap(module, "set_tracking_uri", lambda old: lambda *_, **__: old(address))

    for name, switch_offline in (
        ("wandb", _wandb),
        ("mlflow", mlflow),
        ("comet_ml", _comet),
        ("neptune", lambda module: _always_offline(module, "init_run", "init")),
        ("clearml", lambda module: module.Task.set_offline(offline_mode=True)),
        ("swanlab", lambda module: _always_offline(module, "init")),
    ):

        def imported(module, name=name, switch_offline=switch_offline):
            switch_offline(module)
            session.trackers.append(name)

        watch.when_imported(name, session.guarded(imported))


def _always_offline(module, *names):
    for name in names:
        wrap(module, name, lambda old: lambda *a, **k: old(*a, **{**k, "mode": "offline"}))


def _wandb(module):
    def make(old):
        def init(*args, **kwargs):
            if kwargs.get("mode") != "disabled":
                kwargs["mode"] = "offline"
            return old(*args, **kwargs)

        return init

    wrap(module, "init", make)


def _comet(module):
    for name in ("Experiment", "ExistingExperiment"):
        offline = getattr(module, "Offline" + name, None)
        if offline is not None:
            setattr(module, name, offline)
