"""The NVIDIA driver's figures of its GPUs; each reading by itself, as not all are supported."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, TypeVar

import pynvml

from torchdoctor.schema import Gpu

T = TypeVar("T")
# Bits of nvmlClocksThrottleReasons that slow a busy GPU down; idling and user settings left out.
THROTTLE_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal (driver)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}

# Share of the last period in which a kernel ran; memory in use, by everybody; W; J since the driver
# was loaded; clock; bits.
READINGS: dict[str, Callable[[Any], float]] = {
    "utilization": lambda device: pynvml.nvmlDeviceGetUtilizationRates(device).gpu / 100.0,
    "memory_bytes": lambda device: pynvml.nvmlDeviceGetMemoryInfo(device).used,
    "power_w": lambda device: pynvml.nvmlDeviceGetPowerUsage(device) / 1000.0,
    "energy_j": lambda device: pynvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1000.0,
    "sm_clock_mhz": lambda device: pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM),
    "throttle": lambda device: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device),
}

_ONE_PROCESS = (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, 1)  # 1: one thread, of older drivers


def reading(read: Callable[[], T]) -> T | None:
    """Return the value, or None where the driver or the device does not support it."""
    try:
        return read()
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, AttributeError):
        return None


@contextlib.contextmanager
def session() -> "Iterator[Nvml | None]":
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

    def read(self, name: str, device: Any) -> float:
        """Return one of `READINGS`; NaN: it is not supported."""
        value = reading(partial(READINGS[name], device))
        return math.nan if value is None else float(value)

    def processes(self, device: Any) -> set[int] | None:
        """Return pids that compute on it, as the driver sees them."""
        running = reading(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(device))
        return None if running is None else {int(process.pid) for process in running}

    def describe(self) -> list[Gpu]:
        """Return all devices, for the report."""
        return [_described(index, device) for index, device in enumerate(self.devices)]

    def takes_one_process(self, uuids: Collection[str]) -> bool:
        """Return True if one of these devices is in a mode in which a single process may use it."""
        modes = [
            reading(partial(pynvml.nvmlDeviceGetComputeMode, device))
            for device in self.devices
            if uuid_of(device) in uuids
        ]
        return any(mode in _ONE_PROCESS for mode in modes)

    def driver(self) -> str | None:
        """Return the driver's version."""
        return reading(pynvml.nvmlSystemGetDriverVersion)


def uuid_of(device: Any) -> str | None:
    """Return a device's UUID as torch writes it; None: it has none that can be read."""
    uuid = reading(lambda: pynvml.nvmlDeviceGetUUID(device))
    text = uuid.decode() if isinstance(uuid, bytes) else uuid
    return None if text is None else text.removeprefix("GPU-").removeprefix("MIG-")


def _described(index: int, device: Any) -> Gpu:
    capability = reading(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(device))
    return Gpu(
        index=index,
        name=reading(lambda: pynvml.nvmlDeviceGetName(device)) or "unknown",
        memory_bytes=reading(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(device).total)),
        compute_capability=None if capability is None else "{}.{}".format(*capability),
        uuid=uuid_of(device),
    )
