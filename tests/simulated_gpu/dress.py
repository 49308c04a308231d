"""What Python needs to take the simulated device for a GPU: `torch.cuda` and its relatives."""

from __future__ import annotations

import ctypes
from types import ModuleType, SimpleNamespace
from typing import Any

from simulated_gpu import capture


def dress(torch: Any, library: ctypes.CDLL, kind: str = "cuda") -> None:
    """Give this torch a CUDA device, or one of a backend that torch has no code of its own for."""
    if kind == "rocm":  # the same names in torch, of another maker's device
        kind, torch.version.hip = "cuda", "6.4"
    elif kind == "cuda":
        torch.version.cuda = "12.8"
    else:
        _name_backend(torch, kind)
    torch.cuda._is_compiled = lambda: kind == "cuda"
    device = torch.get_device_module(kind)
    _dress_devices(torch, library, device, kind)
    _dress_streams(torch, library, device, kind, captures(torch, device, kind))
    _dress_memory(torch, device)
    _dress_random_numbers(torch, device, kind)
    _dress_profiler(torch, kind)
    _dress_files(torch, kind)


def _name_backend(torch: Any, kind: str) -> None:
    """Register `torch.<kind>`, as a backend's own package does when it is imported."""
    module = ModuleType(f"torch.{kind}")
    module.__dict__.update({part: SimpleNamespace() for part in ("memory", "streams", "random")})
    module._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]  # type: ignore[attr-defined]
    torch.utils.rename_privateuse1_backend(kind)
    torch._register_device_module(kind, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def _index(torch: Any, device: Any) -> int:
    if device is None:
        return torch.accelerator.current_device_index()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.accelerator.current_device_index() if index is None else index


def _dress_devices(torch: Any, library: ctypes.CDLL, cuda: Any, kind: str) -> None:
    count = library.simulated_devices()

    def lazy_init() -> None:
        if not count:
            raise RuntimeError("No CUDA GPUs are available")
        library.simulated_initialise()
        cuda._initialized = True

    def properties(device: Any = None) -> Any:
        lazy_init()
        index = _index(torch, device)
        maker = "AMD Instinct MI300X" if torch.version.hip else "NVIDIA A100"
        name = f"{maker}-SIM" if kind == "cuda" else f"Simulated {kind.upper()}"
        return SimpleNamespace(
            name=name, major=8, minor=0, total_memory=library.simulated_capacity(),
            multi_processor_count=108, warp_size=32, L2_cache_size=40 << 20, is_integrated=False,
            is_multi_gpu_board=False, gcnArchName="", max_threads_per_multi_processor=2048,
            regs_per_multiprocessor=65536, shared_memory_per_block=49152,
            shared_memory_per_block_optin=166912, shared_memory_per_multiprocessor=167936,
            uuid=f"00000000-0000-0000-0000-{index:012d}", pci_bus_id=index, pci_device_id=0,
            pci_domain_id=0,
        )  # fmt: skip

    def set_device(device: Any) -> None:
        torch.accelerator.set_device_index(_index(torch, device))

    def exchange(index: int) -> int:
        if index < 0:
            return -1
        before = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(index)
        return before

    def synchronize(device: Any = None) -> None:
        lazy_init()
        torch._C._accelerator_synchronizeDevice(_index(torch, device))

    cuda._lazy_init, cuda.init = lazy_init, lazy_init
    cuda.is_initialized = lambda: bool(library.simulated_initialised())
    cuda.is_available = lambda: count > 0
    cuda.device_count = lambda: count
    cuda._initialized = False
    cuda.current_device = torch.accelerator.current_device_index
    cuda.set_device, cuda.synchronize = set_device, synchronize
    cuda._exchange_device, cuda._maybe_exchange_device = exchange, exchange
    cuda.get_device_properties, cuda._get_device_properties = properties, properties
    cuda.get_device_name = lambda device=None: properties(device).name
    cuda.get_device_capability = lambda device=None: (8, 0)
    cuda.is_bf16_supported = lambda including_emulation=True: True
    cuda.is_tf32_supported = lambda: True
    cuda.get_arch_list = lambda: ["sm_80"]
    cuda.can_device_access_peer = lambda device, peer: True
    cuda.ipc_collect = lambda: None
    if cuda is not torch.cuda:
        cuda.is_current_stream_capturing = lambda: False
        return
    torch._C._cuda_getDeviceCount = lambda: count
    torch._C._cuda_getDevice = torch.accelerator.current_device_index
    torch._C._cuda_is_bf16_supported = lambda: True
    torch._C._cuda_getCurrentRawStream = lambda index: 0


def captures(torch: Any, cuda: Any, kind: str) -> capture.Capture:
    """Return the capture of graphs, which is CUDA's alone; elsewhere one that never begins."""
    return capture.dress(torch, cuda, kind) if cuda is torch.cuda else capture.Capture()


def _dress_streams(
    torch: Any, library: ctypes.CDLL, cuda: Any, kind: str, captured: capture.Capture
) -> None:
    library.simulated_elapsed_ms.restype = ctypes.c_double
    library.simulated_elapsed_ms.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    device_of = library.simulated_event_device
    device_of.argtypes = [ctypes.c_void_p]

    class Event(torch.Event):
        """An event of the device."""

        captured = False

        def __new__(cls, enable_timing=False, blocking=False, interprocess=False):
            return super().__new__(cls, kind, enable_timing=enable_timing)

        def record(self, stream=None):
            self.captured = captured.graph is not None
            captured.events += self.captured
            super().record(stream if stream is not None else cuda.current_stream())

        def _permit(self):
            captured.permit()
            if self.captured:
                raise RuntimeError(capture.CAPTURED_EVENT)

        def query(self):
            self._permit()
            return super().query()

        def synchronize(self):
            self._permit()
            super().synchronize()

        def elapsed_time(self, end_event):
            self._permit()
            if not library.simulated_event_times():
                raise RuntimeError("Events of this backend have no times.")
            ours, others = map(device_of, (self.event_id, end_event.event_id))
            if ours != others:
                raise RuntimeError("Events of two devices have no time between them.")
            # torch's own takes no subclass of its events.
            return library.simulated_elapsed_ms(self.event_id, end_event.event_id)

        def wait(self, stream=None):
            super().wait(stream if stream is not None else cuda.current_stream())

    class Stream(torch.Stream):
        """A stream of the device."""

        def synchronize(self):
            captured.permit()
            super().synchronize()

        def __new__(cls, device=None, priority=0, **kwargs):
            if kwargs:
                return super().__new__(cls, **kwargs)
            return super().__new__(cls, torch.device(kind, _index(torch, device)))

        @property
        def cuda_stream(self):
            return self.stream_id

    def current(device: Any = None) -> Any:
        stream = torch.accelerator.current_stream(_index(torch, device))
        return Stream(stream_id=stream.stream_id, device_index=stream.device_index,
                      device_type=stream.device_type)  # fmt: skip

    def default(device: Any = None) -> Any:
        stream = current(device)
        return Stream(stream_id=0, device_index=stream.device_index, device_type=stream.device_type)

    synchronize = cuda.synchronize

    def permitted(device: Any = None) -> None:
        captured.permit()
        synchronize(device)

    cuda.synchronize, cuda._captured = permitted, captured
    cuda.Event, cuda.Stream = Event, Stream
    cuda.streams.Event, cuda.streams.Stream = Event, Stream
    cuda.current_stream, cuda.default_stream = current, default
    cuda.set_stream = torch.accelerator.set_stream

    class StreamContext:
        """Work of the block goes into the stream."""

        def __init__(self, stream):
            self.stream, self._before = stream, None

        def __enter__(self):
            if self.stream is not None:
                self._before = current(self.stream.device_index)
                torch.accelerator.set_stream(self.stream)

        def __exit__(self, *_):
            if self.stream is not None:
                torch.accelerator.set_stream(self._before)

    cuda.StreamContext, cuda.stream = StreamContext, StreamContext


def _dress_memory(torch: Any, cuda: Any) -> None:
    memory, names = cuda.memory, torch._C

    def stats(device: Any = None) -> Any:
        return names._accelerator_getDeviceStats(_index(torch, device))

    def reset_peak(device: Any = None) -> None:
        names._accelerator_resetPeakStats(_index(torch, device))

    def flat(device: Any = None) -> dict[str, int]:
        rows: list[tuple[str, int]] = []

        def walk(prefix: str, value: Any) -> None:
            if isinstance(value, dict):
                for key, part in value.items():
                    walk(f"{prefix}.{key}" if prefix else key, part)
            else:
                rows.append((prefix, value))

        walk("", stats(device))
        return dict(sorted(rows))

    def of(name: str) -> Any:
        return lambda device=None: flat(device)[name]

    functions = {
        "memory_stats": flat,
        "memory_stats_as_nested_dict": stats,
        "memory_allocated": of("allocated_bytes.all.current"),
        "max_memory_allocated": of("allocated_bytes.all.peak"),
        "memory_reserved": of("reserved_bytes.all.current"),
        "max_memory_reserved": of("reserved_bytes.all.peak"),
        "reset_peak_memory_stats": reset_peak,
        "reset_max_memory_allocated": reset_peak,
        "empty_cache": names._accelerator_emptyCache,
        "mem_get_info": lambda device=None: names._accelerator_getMemoryInfo(_index(torch, device)),
        "memory_snapshot": lambda *_, **__: [],
        "_record_memory_history": lambda *_, **__: None,
        "_snapshot": lambda *_, **__: {"segments": [], "device_traces": [[]]},
        "_dump_snapshot": _dump_snapshot,
        "get_allocator_backend": lambda: "native",
    }
    for name, function in functions.items():
        setattr(memory, name, function)
        if not name.startswith("_"):
            setattr(cuda, name, function)


def _dump_snapshot(filename: str = "dump_snapshot.pickle", *_: Any, **__: Any) -> None:
    import pickle

    with open(filename, "wb") as file:  # noqa: PTH123
        pickle.dump({"segments": [], "device_traces": [[]]}, file)


def _dress_random_numbers(torch: Any, cuda: Any, kind: str) -> None:
    generators = {}

    def generator(device: Any = kind) -> Any:
        index = _index(torch, device)
        if index not in generators:
            generators[index] = torch.Generator(device=torch.device(kind, index))
        return generators[index]

    cuda.default_generators = tuple(generator(i) for i in range(cuda.device_count()))
    functions = {
        "manual_seed": lambda seed: generator().manual_seed(int(seed)),
        "manual_seed_all": lambda seed: [g.manual_seed(int(seed)) for g in cuda.default_generators],
        "seed": lambda: generator().seed(),
        "seed_all": lambda: [g.seed() for g in cuda.default_generators],
        "initial_seed": lambda: generator().initial_seed(),
        "get_rng_state": lambda device=kind: generator(device).get_state(),
        "get_rng_state_all": lambda: [g.get_state() for g in cuda.default_generators],
        "set_rng_state": lambda state, device=kind: generator(device).set_state(state),
        "set_rng_state_all": lambda states: [
            g.set_state(s) for g, s in zip(cuda.default_generators, states, strict=True)
        ],
    }
    for name, function in functions.items():
        setattr(cuda, name, function)
        setattr(cuda.random, name, function)


def _dress_profiler(torch: Any, kind: str) -> None:
    known = torch.profiler.ProfilerActivity
    activities = {known.CPU, known.CUDA if kind == "cuda" else known.PrivateUse1}
    torch.autograd.profiler._supported_activities = lambda: activities
    torch.profiler.profiler.supported_activities = lambda: activities
    torch.profiler.supported_activities = lambda: activities
    torch.autograd._supported_activities = lambda: activities


def _dress_files(torch: Any, kind: str) -> None:
    """`torch.load` puts what lay on the device there again, before torch's own ways are asked."""

    def tag(storage: Any) -> str | None:
        return f"{kind}:{storage.device.index or 0}" if storage.device.type == kind else None

    def place(storage: Any, location: str) -> Any:
        if not location.startswith(kind):
            return None
        device = torch.device(location)
        moved = torch.tensor([], dtype=torch.uint8).set_(storage).to(device)
        return moved.untyped_storage()

    torch.serialization.register_package(15, tag, place)
