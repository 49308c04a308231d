"""What the NVIDIA driver tells about its GPUs; None for whatever it does not.

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
        count = reading(pynvml.nvmlDeviceGetCount) or 0
        handles = [reading(partial(pynvml.nvmlDeviceGetHandleByIndex, i)) for i in range(count)]
        self.devices: list[Any] = [handle for handle in handles if handle is not None]

    def utilization(self, device: Any) -> float | None:
        """Return the share of the last sampling period in which a kernel ran, 0 to 1."""
        rates = reading(lambda: pynvml.nvmlDeviceGetUtilizationRates(device))
        return None if rates is None else rates.gpu / 100.0

    def memory_bytes(self, device: Any) -> int | None:
        """Return the memory in use, by everybody."""
        memory = reading(lambda: pynvml.nvmlDeviceGetMemoryInfo(device))
        return None if memory is None else int(memory.used)

    def power_w(self, device: Any) -> float | None:
        """Return the power drawn now."""
        power = reading(lambda: pynvml.nvmlDeviceGetPowerUsage(device))
        return None if power is None else power / 1000.0

    def sm_clock_mhz(self, device: Any) -> float | None:
        """Return the clock of the streaming multiprocessors."""
        clock = reading(lambda: pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM))
        return None if clock is None else float(clock)

    def throttle(self, device: Any) -> int | None:
        """Return bits of `THROTTLE_REASONS`."""
        return reading(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device))

    def pcie_bytes_per_s(self, device: Any) -> tuple[float, float] | None:
        """Return bytes per second to and from the GPU; takes 40 ms, for which the driver waits."""
        counters = (pynvml.NVML_PCIE_UTIL_RX_BYTES, pynvml.NVML_PCIE_UTIL_TX_BYTES)
        rates = [
            reading(partial(pynvml.nvmlDeviceGetPcieThroughput, device, counter))
            for counter in counters
        ]
        if rates[0] is None or rates[1] is None:
            return None
        return rates[0] * 1024.0, rates[1] * 1024.0  # the driver speaks of KB/s

    def processes(self, device: Any) -> set[int] | None:
        """Return pids that compute on it, as the driver sees them."""
        running = reading(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(device))
        return None if running is None else {int(process.pid) for process in running}

    def describe(self) -> list[Gpu]:
        """Return all devices, for the report."""
        return [self._describe(index, device) for index, device in enumerate(self.devices)]

    def _describe(self, index: int, device: Any) -> Gpu:
        memory = reading(lambda: pynvml.nvmlDeviceGetMemoryInfo(device))
        capability = reading(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(device))
        limit = reading(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(device))
        return Gpu(
            index=index,
            name=_text(reading(lambda: pynvml.nvmlDeviceGetName(device))) or "unknown",
            memory_bytes=None if memory is None else int(memory.total),
            compute_capability=None if capability is None else "{}.{}".format(*capability),
            pcie_generation=reading(lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(device)),
            pcie_width=reading(lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(device)),
            power_limit_w=None if limit is None else limit / 1000.0,
        )

    def driver(self) -> str | None:
        """Return the driver's version."""
        return _text(reading(pynvml.nvmlSystemGetDriverVersion))


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
