"""Runs programs on the simulated device; skips, with the reason, where it cannot be built."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import forked_programs
import pytest

from simulated_gpu import build

TESTS = Path(__file__).parent.parent
EVERYWHERE = str(Path(__file__).parent / "everywhere")


@functools.cache
def variables(kind: str = "cuda") -> dict[str, str]:
    """Return what gives a process the device, under a name in torch, once it imports `attach`."""
    try:
        library = build.library()
    except build.NotBuilt as reason:
        pytest.skip(f"the simulated GPU cannot be built: {reason}")
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    named = {"SIMULATED_GPU_LIBRARY": str(library), "SIMULATED_ACCELERATOR": kind}
    return {"PYTHONPATH": path, **named}


def environment(kind: str = "cuda") -> dict[str, str]:
    """Return the whole environment of such a process."""
    return {**os.environ, **variables(kind)}


@functools.cache
def nvml_folder() -> str:
    """Return the folder of the simulated NVML."""
    try:
        return str(build.nvml_folder())
    except build.NotBuilt as reason:
        pytest.skip(f"the simulated NVML cannot be built: {reason}")


def named(program: str, kind: str) -> str:
    """Return a program for the GPU as one for the device under another name."""
    kind = kind.replace("rocm", "cuda")
    return re.sub(r"(?<=torch\.)cuda\b|(?<=\")cuda(?=[\":])|(?<=\.)cuda(?=\(\))", kind, program)


def run(program: str, settings: str = "", *, kind: str = "cuda", timeout: float = 600) -> Any:
    """Run a program with the device; what it prints last is JSON, and comes back."""
    changes = {**variables(kind), "SIMULATED_GPU": settings}
    program = "from simulated_gpu.attach import counts\n" + named(program, kind)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(program, encoding="utf-8")
        surroundings = forked_programs.environment(**changes)
        ended = forked_programs.run(["program.py"], folder, surroundings, folder, timeout=timeout)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def doctor(
    folder: Path,
    *arguments: str,
    settings: str = "",
    nvml: str = "",
    kind: str = "cuda",
    everywhere: bool = False,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run torchdoctor in a folder on a machine with the device.

    Args:
        folder: the working folder.
        arguments: of torchdoctor.
        settings: of the device (SIMULATED_GPU).
        nvml: the lines of the state file; "": a machine without NVML.
        kind: the device's name in torch.
        everywhere: every Python has the device, also of programs that do not ask for it.
        timeout: seconds.
    """
    surroundings = {**environment(kind), "SIMULATED_GPU": settings}
    if everywhere:
        surroundings["PYTHONPATH"] = os.pathsep.join([EVERYWHERE, surroundings["PYTHONPATH"]])
    if nvml:
        state = folder.parent / f"{folder.name}-nvml"
        state.write_text(nvml, encoding="utf-8")
        libraries = [nvml_folder(), os.environ.get("LD_LIBRARY_PATH")]
        surroundings["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
        surroundings["SIMULATED_NVML"] = str(state)
    return subprocess.run(
        [sys.executable, "-m", "torchdoctor", *arguments],
        cwd=folder,
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
