"""The device beside the CPU, under whatever name its backend has in torch.

CUDA, and ROCm under the same name; XPU, MPS and others that torch names (from torch 2.6 on).
"""


class Accelerator:
    """What the probe needs of the backend's module, such as `torch.cuda` or `torch.xpu`."""

    def __init__(self, torch):
        known = getattr(torch, "accelerator", None)
        device = known.current_accelerator() if known is not None else None
        # A CPU build has none, and a CUDA build of an older torch its own.
        self.built = device is not None or torch.version.cuda is not None
        self.type = "cuda" if device is None else device.type
        self.module = torch.get_device_module(self.type)
        # As it is before a fix or a ceiling replaces it: the end of a block waits all the same.
        self._wait = self.module.synchronize

    def is_used(self):
        """Return True once the program has used the device; asking does not start its driver."""
        asked = getattr(self.module, "is_initialized", None)
        return asked() if asked is not None else self.built and self.module.device_count() > 0

    def is_available(self):
        """Return True if there is a device; asking may start its driver."""
        return self.built and self.module.device_count() > 0

    def wait(self):
        """Wait until the device has done what the program asked for."""
        if self.is_used():
            self._wait()

    def event(self):
        """Return an event recorded in the current stream; None: it would end up in a graph."""
        capturing = getattr(self.module, "is_current_stream_capturing", None)
        if not self.is_used() or (capturing is not None and capturing()):
            return None
        event = self.module.Event(enable_timing=True)
        event.record()
        return event

    def facts(self):
        """Return its name, its devices' names and the program's peak of memory."""
        if not self.is_used():
            return {"accelerator": None, "devices": [], "peak_gpu_memory_bytes": None}
        name = getattr(self.module, "get_device_name", lambda _: self.type)
        peak = getattr(self.module, "max_memory_allocated", lambda: None)
        names = [name(index) for index in range(self.module.device_count())]
        return {"accelerator": self.type, "devices": names, "peak_gpu_memory_bytes": peak()}
