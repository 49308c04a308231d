"""The environment of a launch: the user's, and what the probe needs. No other change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.words import Workload

PROBE = Path(__file__).resolve().parent.parent / "probe"
# Variables that each tracker reads itself; where the user has switched one off, that stays.
_MODES = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
}
_KEPT = ("offline", "disabled", "dryrun", "debug", "read-only")


def child_environment(
    plan_file: Path,
    sandbox: Sandbox,
    folder: Path,
    scratch: Path,
    compile_cache: Path | None = None,
    seed: int | None = None,
) -> dict[str, str]:
    """Return the user's environment with what a launch needs, and no other change.

    The probe stands in front of the path, trackers are offline, torch.compile's cache is where the
    next launch finds it, and strings are hashed by one seed, so that a set of labels has the same
    order in every launch (unless the user chose otherwise).
    """
    user = dict(os.environ)
    path = user.get("PYTHONPATH")
    user["PYTHONPATH"] = f"{PROBE}{os.pathsep}{path}" if path else str(PROBE)
    user["TORCHDOCTOR_PLAN"] = str(plan_file)
    # In an overlay the launch's own folder is thrown away as everything is.
    away = folder.absolute() if sandbox.mode == "overlay" else scratch
    user |= trackers_offline(away / "trackers", user)
    if compile_cache is not None:
        user.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compile_cache.absolute()))
        user.setdefault("TRITON_CACHE_DIR", str(compile_cache.absolute() / "triton"))
    if seed is not None:
        user.setdefault("PYTHONHASHSEED", str(seed % 2**32))
    if sandbox.mode == "redirect":
        user["PYTHONDONTWRITEBYTECODE"] = "1"
    return user


def named_places(workload: Workload) -> list[str]:
    """Return folders that the command line names: where the program may want to write."""
    folders = {str(Path(workload.script).parent)} if workload.script else set()
    for argument in workload.command[1:]:
        text = argument.partition("=")[2] or argument
        with contextlib.suppress(OSError, ValueError):
            path = Path(workload.cwd, text)
            folder = path if path.is_dir() else path.parent
            if folder.is_dir() and folder != folder.parent:
                folders.add(str(folder))
    return sorted(folders)


def trackers_offline(folder: Path, user: Mapping[str, str]) -> dict[str, str]:
    """Return variables that keep experiment trackers on this machine.

    A launch that is thrown away must not appear in anybody's project.

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
