"""The NVIDIA driver's figures of its GPUs; None for whatever it does not tell.

Every reading is guarded on its own: a virtual GPU, a MIG slice or an old driver supports some of
them and not others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pynvml

from torchdoctor.words import Gpu

T = TypeVar("T")
# Bits of nvmlClocksThrottleReasons that slow a busy GPU down; idling and user settings left out.
THROTTLE_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal (driver)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


def reading(read: Callable[[], T]) -> T | None:
    """Return the value, or None where the driver or the device does not support it."""
    try:
        return read()
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, AttributeError):
        return None


@contextlib.contextmanager
def session() -> Iterator[Nvml | None]:
    """Yield NVML while it is open; None on a machine without an NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield Nvml()
    finally:
        reading(pynvml.nvmlShutdown)


class Nvml:
    """The devices of this machine, by index. Only while a `session` is open."""

    def __init__(self) -> None:
        numbers = range(reading(pynvml.nvmlDeviceGetCount) or 0)
        handles = [reading(partial(pynvml.nvmlDeviceGetHandleByIndex, n)) for n in numbers]
        self.devices: list[Any] = [handle for handle in handles if handle is not None]

    def utilization(self, device: Any) -> float | None:
        """Return the share of the last sampling period in which a kernel ran, 0 to 1."""
        return reading(lambda: pynvml.nvmlDeviceGetUtilizationRates(device).gpu / 100.0)

    def memory_bytes(self, device: Any) -> int | None:
        """Return the memory in use, by everybody."""
        return reading(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(device).used))

    def power_w(self, device: Any) -> float | None:
        """Return the power drawn now."""
        return reading(lambda: pynvml.nvmlDeviceGetPowerUsage(device) / 1000.0)

    def sm_clock_mhz(self, device: Any) -> float | None:
        """Return the clock of the streaming multiprocessors."""
        return reading(lambda: float(pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM)))

    def throttle(self, device: Any) -> int | None:
        """Return bits of `THROTTLE_REASONS`."""
        return reading(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device))

    def pcie_bytes_per_s(self, device: Any) -> tuple[float, float] | None:
        """Return bytes per second to and from the GPU; takes 40 ms, for which the driver waits."""
        read = partial(pynvml.nvmlDeviceGetPcieThroughput, device)
        # The driver speaks of KB/s.
        received = reading(lambda: read(pynvml.NVML_PCIE_UTIL_RX_BYTES) * 1024.0)
        sent = reading(lambda: read(pynvml.NVML_PCIE_UTIL_TX_BYTES) * 1024.0)
        return None if received is None or sent is None else (received, sent)

    def processes(self, device: Any) -> set[int] | None:
        """Return pids that compute on it, as the driver sees them."""
        running = reading(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(device))
        return None if running is None else {int(process.pid) for process in running}

    def describe(self) -> list[Gpu]:
        """Return all devices, for the report."""
        return [self._describe(index, device) for index, device in enumerate(self.devices)]

    def _describe(self, index: int, device: Any) -> Gpu:
        return Gpu(
            index=index,
            name=_text(reading(lambda: pynvml.nvmlDeviceGetName(device))) or "unknown",
            memory_bytes=reading(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(device).total)),
            compute_capability=reading(
                lambda: "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(device))
            ),
            pcie_generation=reading(lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(device)),
            pcie_width=reading(lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(device)),
            power_limit_w=reading(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(device) / 1000.0),
        )

    def driver(self) -> str | None:
        """Return the driver's version."""
        return _text(reading(pynvml.nvmlSystemGetDriverVersion))


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
