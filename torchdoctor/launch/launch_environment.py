"""The environment of a launch: the user's, and what the probe needs. No other change."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torchdoctor.launch import trackers
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.words import Workload

PROBE = Path(__file__).resolve().parent.parent / "probe"


def child_environment(
    plan_file: Path,
    sandbox: Sandbox,
    folder: Path,
    scratch: Path,
    compile_cache: Path | None = None,
    seed: int | None = None,
) -> dict[str, str]:
    """The user's environment, the probe in front of the path, trackers offline, torch.compile's
    cache where the next launch finds it and strings hashed by one seed, so that a set of labels has
    the same order in every launch (unless the user chose otherwise). No other change.
    """
    user = dict(os.environ)
    path = user.get("PYTHONPATH")
    user["PYTHONPATH"] = f"{PROBE}{os.pathsep}{path}" if path else str(PROBE)
    user["TORCHDOCTOR_PLAN"] = str(plan_file)
    # In an overlay the launch's own folder is thrown away as everything is.
    away = folder.absolute() if sandbox.mode == "overlay" else scratch
    user |= trackers.offline(away / "trackers", user)
    if compile_cache is not None:
        user.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compile_cache.absolute()))
        user.setdefault("TRITON_CACHE_DIR", str(compile_cache.absolute() / "triton"))
    if seed is not None:
        user.setdefault("PYTHONHASHSEED", str(seed % 2**32))
    if sandbox.mode == "redirect":
        user["PYTHONDONTWRITEBYTECODE"] = "1"
    return user


def named_places(workload: Workload) -> list[str]:
    """Folders that the command line names: where the program may want to write."""
    found = {str(Path(workload.script).parent)} if workload.script else set()
    for argument in workload.command[1:]:
        text = argument.partition("=")[2] or argument
        with contextlib.suppress(OSError, ValueError):
            path = Path(workload.cwd, text)
            folder = path if path.is_dir() else path.parent
            if folder.is_dir() and folder != folder.parent:
                found.add(str(folder))
    return sorted(found)
