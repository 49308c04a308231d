"""Experiment trackers: nothing that a launch logs may leave the machine or reach real results.

The launch's environment switches trackers offline; this covers scripts that ask for more.
"""

import functools
import os


def install(session, watch):
    """Watch for the trackers' imports, unless the plan says otherwise."""
    session.trackers = []
    if not session.plan.get("trackers_offline", True):
        return
    scratch = os.path.join(session.channel, "trackers")
    watch.when_imported("wandb", session.guarded(lambda m: _wandb(session, m)))
    watch.when_imported("mlflow", session.guarded(lambda m: _mlflow(session, m, scratch)))
    watch.when_imported("comet_ml", session.guarded(lambda m: _comet(session, m)))
    watch.when_imported("neptune", session.guarded(lambda m: _neptune(session, m)))
    watch.when_imported("clearml", session.guarded(lambda m: _clearml(session, m)))
    watch.when_imported("swanlab", session.guarded(lambda m: _swanlab(session, m)))


def _with(owner, name, change):
    """Wrap owner.name so that change(kwargs) runs on its keyword arguments first."""
    old = getattr(owner, name, None)
    if old is None:
        return

    @functools.wraps(old)
    def function(*args, **kwargs):
        change(kwargs)
        return old(*args, **kwargs)

    setattr(owner, name, function)


def _wandb(session, wandb):
    def offline(kwargs):
        if kwargs.get("mode") != "disabled":
            kwargs["mode"] = "offline"

    _with(wandb, "init", offline)
    _with(wandb, "login", lambda kwargs: None)
    session.trackers.append("wandb")


def _mlflow(session, mlflow, scratch):
    address = "file://" + scratch
    mlflow.set_tracking_uri(address)
    old = mlflow.set_tracking_uri

    @functools.wraps(old)
    def set_tracking_uri(*args, **kwargs):
        return old(address)

    mlflow.set_tracking_uri = set_tracking_uri
    session.trackers.append("mlflow")


def _comet(session, comet_ml):
    for name in ("Experiment", "ExistingExperiment"):
        offline = getattr(comet_ml, "Offline" + name, None)
        if offline is not None:
            setattr(comet_ml, name, offline)
    session.trackers.append("comet_ml")


def _neptune(session, neptune):
    for name in ("init_run", "init"):
        _with(neptune, name, lambda kwargs: kwargs.update(mode="offline"))
    session.trackers.append("neptune")


def _clearml(session, clearml):
    clearml.Task.set_offline(offline_mode=True)
    session.trackers.append("clearml")


def _swanlab(session, swanlab):
    _with(swanlab, "init", lambda kwargs: kwargs.update(mode="offline"))
    session.trackers.append("swanlab")
