"""Gives this process the simulated device: imported before torch by the program under test.

torch is dressed up within its own import, so that whoever waits for `import torch` (the probe)
finds a torch that has a GPU.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

KIND = os.environ.get("SIMULATED_ACCELERATOR", "cuda")  # the device's name in torch
COUNTS = (
    *("kernels", "copies", "synchronisations", "mallocs", "frees"),
    *("busy_ns", "copy_ns", "waited_ns"),
)


class _Finder:
    """A meta path finder that dresses torch up once its own module has been executed."""

    def __init__(self) -> None:
        self._busy = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self._busy:
            return None
        self._busy = True
        try:
            spec = find_spec(name)
        finally:
            self._busy = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            self._busy = True
            library = _load()  # before torch: its hooks are kept at their first use
            execute(module)
            _dress(module, library)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _dress(torch: ModuleType, library: ctypes.CDLL) -> None:
    from simulated_gpu.dress import dress

    dress(torch, library, KIND)
    if os.environ.get("SIMULATED_TRUTH"):
        from simulated_gpu import truth

        truth.begin(counts, library.simulated_pending_ns)


@cache
def _load() -> ctypes.CDLL:
    from simulated_gpu.build import library

    path = os.environ.get("SIMULATED_GPU_LIBRARY") or str(library())
    device = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    device.simulated_capacity.restype = device.simulated_pending_ns.restype = ctypes.c_int64
    return device


def counts(index: int = 0) -> dict[str, int]:
    """Return what the device counted since the process began."""
    numbers = (ctypes.c_int64 * len(COUNTS))()
    _load().simulated_counts(index, numbers)
    return dict(zip(COUNTS, numbers, strict=True))


if "torch" in sys.modules:  # in a forked program, whose server loaded the device before torch
    ctypes.CDLL(os.environ["SIMULATED_GPU_LIBRARY"], mode=os.RTLD_NOLOAD)
    _dress(sys.modules["torch"], _load())
else:
    # Behind the probe's own finder, which calls back when torch has been imported.
    behind = 1 if os.environ.get("TORCHDOCTOR_PLAN") else 0
    sys.meta_path.insert(behind, _Finder())  # type: ignore[arg-type]
