"""A neutral recording, and partial ones merged over it: the examples that check files carry."""

from __future__ import annotations

from typing import Any

import msgspec

from torchdoctor.schema import Recording

NEUTRAL: dict[str, Any] = {
    "workload": {"command": ["python", "train.py"], "cwd": "/w", "script": "/w/train.py"},
    "environment": {"cpu_cores": 8, "usable_cpus": 8.0, "memory_bytes": 2**34},
    "steps": {
        "boundary": {"kind": "loader", "ident": 0, "every": 1},
        "how_found": "one iteration is one batch of the DataLoader.",
        "steps": 100,
        "warmup_steps": 10,
        "median_s": 0.010,
        "mean_s": 0.010,
        "p10_s": 0.0095,
        "p90_s": 0.0105,
        "total_steps_seen": 110,
    },
    "processes": [{"pid": 1}],
}


def merged(over: dict[str, Any], base: dict[str, Any] | None = None) -> dict[str, Any]:
    """`over` laid over `base`: dictionaries merge, everything else (lists too) replaces."""
    result = dict(NEUTRAL if base is None else base)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        result[key] = merged(value, below) if both else value
    return result


def recording(over: dict[str, Any] | None = None) -> Recording:
    """A `Recording` of the neutral one with `over` merged in; unknown names are refused."""
    whole = merged(over or {})
    _refuse_unknown(whole, Recording)
    return msgspec.convert(whole, type=Recording)


def _refuse_unknown(data: dict[str, Any], cls: type) -> None:
    """A misspelt field in an example would otherwise be ignored, and the example would lie."""
    types = {field.name: field.type for field in msgspec.inspect.type_info(cls).fields}
    for key, value in data.items():
        if key not in types:
            raise KeyError(f"{cls.__name__} has no field {key!r}")
        for part, kind in _records_in(value, types[key]):
            _refuse_unknown(part, kind)


def _records_in(value: Any, kind: Any) -> list[tuple[dict[str, Any], type]]:
    if isinstance(kind, msgspec.inspect.UnionType):
        return [found for one in kind.types for found in _records_in(value, one)]
    if isinstance(kind, msgspec.inspect.ListType) and isinstance(value, list):
        return [found for one in value for found in _records_in(one, kind.item_type)]
    if isinstance(kind, msgspec.inspect.DataclassType) and isinstance(value, dict):
        return [(value, kind.cls)]
    return []
