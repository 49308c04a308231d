"""Runs programs on the simulated device; skips, with the reason, where it cannot be built."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulated_gpu import build

TESTS = Path(__file__).parent.parent


@functools.cache
def environment() -> dict[str, str]:
    """Return the variables of a process that shall have the device."""
    try:
        library = build.library()
    except build.NotBuilt as reason:
        pytest.skip(f"the simulated GPU cannot be built: {reason}")
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "SIMULATED_GPU_LIBRARY": str(library)}


@functools.cache
def nvml_folder() -> str:
    """Return the folder of the simulated NVML."""
    try:
        return str(build.nvml_folder())
    except build.NotBuilt as reason:
        pytest.skip(f"the simulated NVML cannot be built: {reason}")


def run(program: str, settings: str = "", *, timeout: float = 600) -> Any:
    """Run a program with the device; what it prints last is JSON, and comes back."""
    variables = {**environment(), "SIMULATED_GPU": settings}
    ended = subprocess.run(
        [sys.executable, "-c", "from simulated_gpu.attach import counts\n" + program],
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def doctor(
    folder: Path, *arguments: str, settings: str = "", nvml: str = "", timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run torchdoctor in a folder on a machine with the device.

    Args:
        folder: the working folder.
        arguments: of torchdoctor.
        settings: of the device (SIMULATED_GPU).
        nvml: the lines of the state file; "": a machine without NVML.
        timeout: seconds.
    """
    variables = {**environment(), "SIMULATED_GPU": settings}
    if nvml:
        state = folder.parent / f"{folder.name}-nvml"
        state.write_text(nvml, encoding="utf-8")
        libraries = [nvml_folder(), os.environ.get("LD_LIBRARY_PATH")]
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
        variables["SIMULATED_NVML"] = str(state)
    return subprocess.run(
        [sys.executable, "-m", "torchdoctor", *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
