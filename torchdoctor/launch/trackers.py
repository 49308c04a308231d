"""Experiment trackers: a launch that is thrown away must not appear in anybody's project."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# Variables that each tracker reads itself; where the user has switched one off, that stays.
_MODES = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
}
_KEPT = ("offline", "disabled", "dryrun", "debug", "read-only")


def offline(folder: Path, user: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep trackers on this machine.

    Args:
        folder: a place that is thrown away after the launch.
        user: the user's own environment.
    """
    changed = {name: mode for name, mode in _MODES.items() if user.get(name) not in _KEPT}
    changed["COMET_OFFLINE_DIRECTORY"] = str(folder / "comet")
    changed["MLFLOW_TRACKING_URI"] = (folder / "mlruns").absolute().as_uri()
    changed["MLFLOW_REGISTRY_URI"] = changed["MLFLOW_TRACKING_URI"]
    changed["HF_HUB_DISABLE_TELEMETRY"] = "1"
    return changed
