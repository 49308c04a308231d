"""The environment of a launch: the user's, and what the probe needs. No other change."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

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
    plan_file: Path, trackers: Path, compile_cache: Path | None = None, seed: int | None = None
) -> dict[str, str]:
    """Return the user's environment with what a launch needs, and no other change.

    The probe stands in front of the path, trackers are offline (their files go to `trackers`, which
    is thrown away), torch.compile's cache is where the next launch finds it, and strings are hashed
    by one seed, so that a set of labels has the same order in every launch (unless the user chose
    otherwise).
    """
    user = dict(os.environ)
    user["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROBE), user.get("PYTHONPATH")]))
    user["TORCHDOCTOR_PLAN"] = str(plan_file)
    # A launch that is thrown away must not appear in anybody's project.
    user |= {name: mode for name, mode in _MODES.items() if user.get(name) not in _KEPT}
    user["COMET_OFFLINE_DIRECTORY"] = str(trackers / "comet")
    user["MLFLOW_TRACKING_URI"] = (trackers / "mlruns").absolute().as_uri()
    user["MLFLOW_REGISTRY_URI"] = user["MLFLOW_TRACKING_URI"]
    user["HF_HUB_DISABLE_TELEMETRY"] = "1"
    if compile_cache is not None:
        user.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compile_cache.absolute()))
        user.setdefault("TRITON_CACHE_DIR", str(compile_cache.absolute() / "triton"))
    if seed is not None:
        user.setdefault("PYTHONHASHSEED", str(seed % 2**32))
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
