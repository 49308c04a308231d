"""CUDA graphs of the simulated device: what CUDA refuses while a stream captures, is refused.

Unlike CUDA's, the calls of a capture are carried out once; a replay carries them out again.
"""

from __future__ import annotations

from typing import Any

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
FAILED = "CUDA error: operation failed due to a previous error during capture"
CAPTURED_EVENT = "CUDA error: operation not permitted on an event last recorded in a capture"
_READING = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal")


class Capture:
    """The capture that is going on, if one is."""

    def __init__(self) -> None:
        self.graph: Any = None
        self.events = 0  # recorded into captures, by whomever

    def permit(self) -> None:
        """Raise, and spoil the graph, while a stream captures."""
        if self.graph is not None:
            self.graph.spoilt = True
            raise RuntimeError(NOT_PERMITTED)


def dress(torch: Any, cuda: Any, kind: str) -> Capture:
    """Give torch graphs of the device; return what its events and waits have to ask."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    capture = Capture()

    class Recorded(TorchDispatchMode):
        """Keeps each call that computes on the device."""

        def __init__(self, calls: list[Any]) -> None:
            super().__init__()
            self._calls = calls

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            kwargs = kwargs or {}
            leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            on_device = any(leaf.device.type == kind for leaf in leaves)
            reads = func.overloadpacket.__name__ in _READING
            if on_device and (reads or _meets_host(func, args, kwargs)):
                capture.permit()
            result = func(*args, **kwargs)
            self._calls.append((func, args, kwargs, result))
            return result

    def _meets_host(func: Any, args: Any, kwargs: Any) -> bool:
        name = func.overloadpacket.__name__
        if name == "_to_copy":
            to = kwargs.get("device")
            return to is not None and torch.device(to).type != args[0].device.type
        return name == "copy_" and args[0].device.type != args[1].device.type

    class CUDAGraph:
        """A graph of the device."""

        def __init__(self, keep_graph: bool = False) -> None:
            self._calls: list[Any] = []
            self._mode: Any = None
            self.spoilt = False

        def capture_begin(self, pool: Any = None, **_: Any) -> None:
            self._calls, self.spoilt = [], False
            self._mode = Recorded(self._calls)
            self._mode.__enter__()
            capture.graph = self

        def capture_end(self) -> None:
            self._mode.__exit__(None, None, None)
            capture.graph = None
            if self.spoilt:
                raise RuntimeError(FAILED)

        def replay(self) -> None:
            with torch.no_grad():
                for func, args, kwargs, result in self._calls:
                    again = func(*args, **kwargs)
                    for new, old in zip(tree_leaves(again), tree_leaves(result), strict=True):
                        if isinstance(old, torch.Tensor) and _storage(new) != _storage(old):
                            old.copy_(new)

        def reset(self) -> None:
            self._calls = []

        def pool(self) -> tuple[int, int]:
            return 0, 1

    def _storage(tensor: Any) -> int:
        return tensor.untyped_storage().data_ptr()

    cuda.CUDAGraph = cuda.graphs.CUDAGraph = CUDAGraph
    cuda.graph_pool_handle = cuda.graphs.graph_pool_handle = lambda: (0, 1)
    cuda.is_current_stream_capturing = lambda: capture.graph is not None
    cuda.graphs.is_current_stream_capturing = cuda.is_current_stream_capturing
    torch._C._cuda_isCurrentStreamCapturing = cuda.is_current_stream_capturing
    torch._C._host_emptyCache = lambda: None
    return capture
