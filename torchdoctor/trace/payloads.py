"""Columns of single events: what a device event is, and how many bytes a collective exchanges."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.events import Slice, SliceArgs
from torchdoctor.trace.kernel_names import is_communication

ACCUMULATED = "torch::autograd::AccumulateGrad"  # its input is the gradient of one parameter
_BYTES = {
    **dict.fromkeys(("double", "long", "long int", "complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("half", "bfloat16", "short"), 2),
    **dict.fromkeys(("byte", "char", "unsigned char", "signed char", "bool"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
}


def whole_column(values: list[Any]) -> NDArray[np.int64]:
    """None becomes -1; numbers that no int64 holds (an id of 2**64 - 1) as well."""
    try:
        return np.array([-1 if value is None else value for value in values], dtype=np.int64)
    except (OverflowError, ValueError):
        return np.array(
            [-1 if v is None or not -(2**63) <= v < 2**63 else int(v) for v in values],
            dtype=np.int64,
        )


def device_columns(kind: int, args: Sequence[SliceArgs]) -> dict[str, NDArray[Any]]:
    """The columns of device events of one kind."""
    return {
        "kind": np.full(len(args), kind, dtype=np.int8),
        "correlation": whole_column([arg.correlation for arg in args]),
        "device": whole_column([arg.device for arg in args]),
        "stream": whole_column([arg.stream for arg in args]),
        "bytes": whole_column([arg.bytes for arg in args]),
    }


def payload_column(events: Sequence[Slice], args: Sequence[SliceArgs]) -> NDArray[np.int64]:
    """Bytes that a collective exchanges, or of an accumulated gradient; -1: none, or not recorded.

    Of collectives that divide or gather a tensor those of the whole one, where a kernel says so;
    the host's ranges name their input alone.
    """
    found = np.full(len(events), -1, dtype=np.int64)
    for row, event in enumerate(events):
        if _has_payload(event.name):
            found[row] = _payload(args[row])
    return found


@functools.lru_cache(maxsize=1 << 16)
def _has_payload(name: str) -> bool:
    return name == ACCUMULATED or is_communication(name) or name.startswith("gloo:")


def _payload(args: SliceArgs) -> int:
    elements = [_decoded(args.sent), _decoded(args.received)]
    if any(isinstance(count, int) for count in elements):
        size = _size(_decoded(args.dtype))
        most = max(count for count in elements if isinstance(count, int))
        return most * size if size else -1
    dims, types = _decoded(args.dims) or _decoded(args.dims_2020), _decoded(args.types)
    if not isinstance(dims, list) or not isinstance(types, list):
        return -1
    total = sum(
        _size(kind) * math.prod(shape)
        for shape, kind in zip(dims, types, strict=False)
        if isinstance(shape, list) and all(isinstance(side, int) for side in shape)
    )
    return total or -1


def _size(dtype: Any) -> int:
    """Bytes of one element; 0: no type that is known."""
    return _BYTES.get(str(dtype).lower().removeprefix("c10::"), 0)


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw) if bytes(raw) else None
    except msgspec.DecodeError:
        return None
