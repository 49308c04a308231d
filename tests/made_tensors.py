"""Tensors of batches and calls as the probe notes them."""

from __future__ import annotations

from typing import Any

from torchdoctor.schema import TensorFacts

_BYTES = {"float64": 8, "int64": 8, "float32": 4}


def tensor(*sizes: int, dtype: str = "float32", device: str = "cpu") -> TensorFacts:
    """Return one as a recording holds it."""
    return TensorFacts(sizes=list(sizes), dtype=dtype, device=device, element_bytes=_BYTES[dtype])


def tensor_row(*sizes: int, dtype: str = "float32", device: str = "cpu") -> dict[str, Any]:
    """Return one as it stands in the file of a process."""
    return {"sizes": list(sizes), "dtype": dtype, "device": device, "element_bytes": _BYTES[dtype]}
