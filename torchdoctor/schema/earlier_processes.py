"""Processes of recordings before 2.1 -> the fields of today: data and reasons that were text."""

import re
from collections.abc import Callable, Mapping
from typing import Any

_TENSOR = re.compile(r"(\d{1,18}(?:x\d{1,18})*) ([a-z]+(\d{0,4})\w*)")
_LINEAR = re.compile(r"(.*): Linear (\d{1,18}) -> (\d{1,18})")
_PADDED_SIZE = re.compile(r"(.*) (\d{1,18}) -> (\d{1,18})")
_NO_LABEL = "-"
_BITS = 8  # of a type that has no number in its name


def upgraded(process: Any) -> Any:
    """Return a process as today's types hold it; one of today stays as it is."""
    if not isinstance(process, dict):
        return process
    today = dict(process)
    for name, upgraded_row in _ROWS.items():
        rows = process.get(name)
        if isinstance(rows, list):
            today[name] = [upgraded_row(row) if isinstance(row, dict) else row for row in rows]
    if isinstance(check := process.get("sample_check"), dict):
        today["sample_check"] = _with_fact(check, "reason", "why")
    return today


def _loader(loader: Mapping[str, Any]) -> dict[str, Any]:
    today = _renamed(loader, "batch_shapes", "batch_tensors", _tensors)
    fingerprints = today.pop("sample_fingerprints", None)
    if isinstance(fingerprints, list) and all(isinstance(text, str) for text in fingerprints):
        parts = [text.rpartition(":") for text in fingerprints]
        today["input_hashes"] = [hashed for hashed, _, _ in parts]
        today["label_hashes"] = [None if label == _NO_LABEL else label for _, _, label in parts]
    return _with_fact(today, "no_second", "no_second")


def _fix(row: Mapping[str, Any]) -> dict[str, Any]:
    return _with_fact(row, "reason", "why")


def _with_fact(row: Mapping[str, Any], before: str, name: str) -> dict[str, Any]:
    """Return a row whose reason, a text, is the fact of another field."""
    text = row.get(before)
    if not isinstance(text, str):
        return dict(row)
    rest = {field: value for field, value in row.items() if field != before}
    return {**rest, name: as_message(text)}


def as_message(text: Any) -> dict[str, Any]:
    """Return what an earlier version gave as text as a fact."""
    return {"fact": "message", "values": {"message": text}}


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    today = _renamed(model, "input_shapes", "input_tensors", _tensors)
    return _renamed(today, "odd_sizes", "uneven_linears", _linear)


def _grown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what grew with the model of its hooks: "register_forward_hook of Net" was its name."""
    method, of_model, model = str(row.get("name")).partition(" of ")
    if row.get("kind") != "hooks" or not of_model:
        return dict(row)
    return {**row, "name": method, "model": model}


def _sample(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample with the file and the function of its innermost frame, which were one."""
    if not isinstance(leaf := row.get("leaf"), str):
        return dict(row)
    file, _, function = leaf.rpartition(" ")
    return {**row, "leaf_file": file, "leaf_function": function}


def _product(product: Mapping[str, Any]) -> dict[str, Any]:
    return _renamed(product, "padded", "padded_sizes", _padded_size)


_ROWS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "loaders": _loader,
    "models": _model,
    "padded_products": _product,
    "grown_objects": _grown,
    "stacks": _sample,
    "fixes": _fix,
}


def _renamed(
    row: Mapping[str, Any], before: str, name: str, upgraded_text: Callable[[str], Any]
) -> dict[str, Any]:
    """Return a row whose list of texts has the name and the data of today."""
    today = {field: value for field, value in row.items() if field != before}
    texts = row.get(before)
    if isinstance(texts, list) and name not in row:
        upgraded_texts = [upgraded_text(text) for text in texts if isinstance(text, str)]
        today[name] = [datum for datum in upgraded_texts if datum is not None]
    return today


def _linear(text: str) -> dict[str, Any] | None:
    """Return "head: Linear 768 -> 50257" as a layer."""
    match = _LINEAR.fullmatch(text)
    if match is None:
        return None
    return {"name": match[1], "inputs": int(match[2]), "outputs": int(match[3])}


def _padded_size(text: str) -> dict[str, Any] | None:
    """Return "columns 50257 -> 50304" as a size."""
    match = _PADDED_SIZE.fullmatch(text)
    if match is None:
        return None
    return {"dimension": match[1], "size": int(match[2]), "padded": int(match[3])}


def _tensors(text: str) -> list[dict[str, Any]]:
    """Return "32x3x64x64 float32, 32 int64" as tensors; where they lay was not noted."""
    matches = [_TENSOR.fullmatch(part) for part in text.split(", ")]
    if None in matches:
        return []  # sizes without numbers, of what torch traced
    return [
        {
            "sizes": [int(size) for size in match[1].split("x")],
            "dtype": match[2],
            "element_bytes": max(int(match[3] or _BITS) // _BITS, 1),
        }
        for match in matches
        if match is not None
    ]
