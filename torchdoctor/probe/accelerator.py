"""The devices beside the CPU, under whatever name their backend has in torch.

CUDA, and ROCm under the same name; XPU, MPS and others that torch names (from torch 2.6 on). A
program may compute on any of them without making it the current one ("cuda:1"): what is waited
for and described are the devices that it has memory on.
"""

import os


def keep_cupti():
    """Let no profiler take CUPTI down at its end: CUDA graphs that go on would crash.

    Kineto reads both variables where a profiler starts and stops. The user's own stay.
    """
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")


class Accelerator:
    """What the probe needs of the backend's module, such as `torch.cuda` or `torch.xpu`."""

    def __init__(self, torch):
        device = _device_of(torch)
        # A CPU build has none, and a CUDA build of an older torch its own.
        self.built = device is not None or torch.version.cuda is not None
        self.type = "cuda" if device is None else device.type
        self.module = torch.get_device_module(self.type)
        # As it is before a fix or a ceiling replaces it: the end of a block waits all the same.
        self._wait = self.module.synchronize
        self._count = None  # of devices, once one is used
        self._events_on = None  # the device whose stream events go into, once it is known

    def is_used(self):
        """Return True once the program has used a device; asking does not start its driver."""
        asked = getattr(self.module, "is_initialized", None)
        return asked() if asked is not None else self.built and self.module.device_count() > 0

    def is_available(self):
        """Return True if there is a device; asking may start its driver."""
        return self.built and self.module.device_count() > 0

    def in_use(self):
        """Return the numbers of the devices that the program has memory on.

        The current one alone where there is no other, or the backend does not count memory.
        """
        return self._with_memory() or [self._current()]

    def _with_memory(self):
        """Return the devices whose memory the program took; none where there is only one."""
        return [number for number, peak in self._peaks().items() if peak > 0]

    def _peaks(self):
        """Return the peak memory of each device; {}: there is one, or memory is not counted."""
        peak = getattr(self.module, "max_memory_allocated", None)
        if self._count is None:
            self._count = self.module.device_count()
        if self._count == 1 or peak is None:
            return {}
        return {number: peak(number) for number in range(self._count)}

    def _current(self):
        asked = getattr(self.module, "current_device", None)
        return asked() if asked is not None else 0

    def is_capturing(self):
        """Return True while the current stream captures a graph, which our calls would spoil."""
        asked = getattr(self.module, "is_current_stream_capturing", None)
        return asked is not None and asked()

    def wait(self):
        """Wait until every device in use has done what the program asked for."""
        if not self.is_used() or self.is_capturing():
            return
        used = self.in_use()
        if used == [self._current()]:
            self._wait()
            return
        for number in used:
            self._wait(number)

    def event(self, learns=True):
        """Return an event recorded where the program computes.

        None: it would end up in a graph; or where the program computes will be known only once
        the model learns (`learns`).
        """
        if not self.is_used() or self.is_capturing():
            return None
        if self._count != 1 and self._events_on is None and not self._settle(learns):
            return None
        event = self.module.Event(enable_timing=True)
        if self._count == 1 or self._events_on == self._current():
            event.record()
        else:
            event.record(self.module.current_stream(self._events_on))
        return event

    def _settle(self, learns):
        """Return True once it is known where events go: all have to go to one device."""
        peaks = self._peaks()
        if not peaks or (learns and any(peaks.values())):
            self._events_on = self._most_of(peaks)
        return self._events_on is not None

    def most_used(self):
        """Return the number of the device that holds most: the current one may hold nothing."""
        return self._most_of(self._peaks())

    def _most_of(self, peaks):
        return max(peaks, key=peaks.get) if any(peaks.values()) else self._current()

    def memory_bytes(self):
        """Return what tensors take and what is reserved for them, over all devices in use."""
        used = self.in_use()
        allocated = sum(self.module.memory_allocated(number) for number in used)
        return allocated, sum(self.module.memory_reserved(number) for number in used)

    def capability(self):
        """Return the lowest compute capability of the devices in use; None: there is none."""
        asked = getattr(self.module, "get_device_capability", None)
        capabilities = [asked(number) for number in self.in_use()] if asked is not None else []
        versions = [tuple(each) for each in capabilities if each is not None]
        return min(versions, default=None)

    def facts(self):
        """Return its name, its devices, and what is known of those that the program uses."""
        if not self.is_used():
            return {"accelerator": None, "devices": [], "peak_gpu_memory_bytes": None}
        name = getattr(self.module, "get_device_name", lambda _: self.type)
        names = [name(number) for number in range(self.module.device_count())]
        used = [self._described(number, names[number]) for number in self.in_use()]
        peaks = [device["peak_bytes"] for device in used]
        return {
            "accelerator": self.type,
            "devices": names,
            "used_devices": used,
            "peak_gpu_memory_bytes": None if None in peaks else sum(peaks),
        }

    def _described(self, number, name):
        """Return one device in use; what its backend does not tell is None."""

        def asked(function, *arguments):
            method = getattr(self.module, function, None)
            try:
                return method(*arguments) if method is not None else None
            except (RuntimeError, NotImplementedError, AssertionError):
                return None

        properties = asked("get_device_properties", number)
        free_and_total = asked("mem_get_info", number) or (None, None)
        uuid = getattr(properties, "uuid", None)
        major, minor = (getattr(properties, part, None) for part in ("major", "minor"))
        # A backend of one device may take no number.
        which = [] if self._count == 1 else [number]
        return {
            "index": number,
            "name": name,
            "uuid": None if uuid is None else str(uuid),
            "compute_capability": None if major is None else "%d.%d" % (major, minor or 0),
            "memory_bytes": free_and_total[1] or getattr(properties, "total_memory", None),
            "free_bytes": free_and_total[0],
            "reserved_bytes": asked("memory_reserved", *which),
            "peak_bytes": asked("max_memory_allocated", *which),
            "peak_reserved_bytes": asked("max_memory_reserved", *which),
        }


def _device_of(torch):
    """Return what torch computes on beside the CPU; None: nothing, or an older torch names none."""
    module = getattr(torch, "accelerator", None)
    try:
        return module.current_accelerator() if module is not None else None
    except RuntimeError:  # torch 2.6, where there is no device
        return None
