"""Builds the simulated device and NVML, once for a machine and a version of torch."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent


class NotBuilt(Exception):
    """The device cannot be built here; the message says why."""


def torch_folder() -> Path:
    """Return the folder of the installed torch, without importing it."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise NotBuilt("torch is not installed")
    return Path(spec.origin).resolve().parent  # one torch, though several environments link to it


def library() -> Path:
    """Return the path of the device, built if need be (half a minute).

    Raises:
        NotBuilt: no compiler, a torch with its own CUDA, or an error of the compiler.
    """
    torch = torch_folder()
    if (torch / "lib" / "libtorch_cuda.so").exists():
        raise NotBuilt("this torch has a CUDA library of its own")
    include, lib = torch / "include", torch / "lib"
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-w", "-DUSE_KINETO", "-DFMT_HEADER_ONLY=1"]
    flags += [f"-I{include}", f"-I{include}/torch/csrc/api/include", f"-I{include}/kineto"]
    links = [f"-L{lib}", "-lc10", "-ltorch_cpu", "-ltorch", f"-Wl,-rpath,{lib}"]
    version = (torch / "version.py").read_text(encoding="utf-8")
    return _built("g++", "device.cpp", "device.so", [*flags, *links], [str(torch), version])


def nvml_folder() -> Path:
    """Return a folder for LD_LIBRARY_PATH that holds a simulated libnvidia-ml.so.1.

    Raises:
        NotBuilt: no compiler.
    """
    flags = ["-O1", "-fPIC", "-shared", "-Wl,-soname,libnvidia-ml.so.1"]
    return _built("gcc", "nvml.c", "libnvidia-ml.so.1", flags, []).parent


def _built(compiler: str, source: str, name: str, flags: list[str], known_by: list[str]) -> Path:
    """Compile a source once for each text of it, into a folder of the machine's own."""
    found = shutil.which(compiler)
    if found is None:
        raise NotBuilt(f"there is no {compiler}")
    texts = [sys.version, *known_by, *(path.read_text() for path in sorted(HERE.glob("*.[ch]*")))]
    key = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"torchdoctor-simulated-gpu-{os.getuid()}" / key
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test workers ask at the same time
        if not path.exists():
            part = folder / f"{name}.part"
            # Libraries stand behind the source that needs them.
            command = [found, str(HERE / source), *flags, "-o", str(part)]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode != 0:
                errors = [line for line in ended.stderr.splitlines() if "error" in line]
                raise NotBuilt(f"{compiler} failed: {'; '.join(errors[:3])}")
            part.replace(path)
    return path
