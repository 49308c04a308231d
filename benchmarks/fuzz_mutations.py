"""What goes wrong with a file: its types, fields, order, bytes, encoding, compression."""

from __future__ import annotations

import bz2
import copy
import gzip
import json
import lzma
import random
import re
from collections.abc import Callable
from typing import Any

Site = tuple[Any, Any]  # a dictionary or list, and the key or index of a value in it

# Names and categories that the analysis asks for.
_WORDS = (
    *("ProfilerStep#1", "ProfilerStep#99999999999999999999999", "ProfilerStep#\u00b2"),
    *("ProfilerStep#-1", "ProfilerStep#", "Optimizer.step#Adam.step", "aten::item"),
    *("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "gloo:all_reduce"),
    *("enumerate(DataPipe)#x", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "aten::mm"),
    *("nccl:all_reduce", "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"),
    *("cudaGraphLaunch", "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaMalloc"),
    *("cudaFree", "cudaDeviceSynchronize", "cudaMemcpyAsync", "cudaLaunchKernel"),
    *("aten::convolution", "aten::convolution_backward", "aten::linear", "aten::addmm"),
    *("aten::scaled_dot_product_attention", "torch::autograd::AccumulateGrad"),
    *("autograd::engine::evaluate_function: MulBackward0", "train.py(3): main"),
    *("cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "user_annotation"),
    *("python_function", "Trace", "torchdoctor", "X", "f", "M", "\u00e9\u4e2d\U0001f600"),
)
_TEXTS = (
    *(
        "",
        " ",
        "12",
        "-1",
        "1e400",
        "NaN",
        "null",
        "a" * 5000,
        "line\nline",
        "\u202e\u0000\u001b[31m",
    ),
    *("../../etc/passwd", "<script>alert(1)</script>", "\ud800", "%s %n {0} {x}", "[bold]x[/nope]"),
)
_NUMBERS = (
    *(0, 1, -1, 2, 255, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 2**64 - 1),
    *(-(2**63), 10**30, -(10**30), 0.0, -0.0, 0.5, -1.5, 1e-300, 1e18, 1e19, 1e60, 1e300, -1e300),
)
_RAW = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400, "01", "+1", "1.", "nul"),
    *("[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300, "[" * 20_000 + "]" * 20_000),
    *("[" * 3000, "'single'", '"\\x"', '"\\ud800"', '"\\u0000"', "", ",", "/* no */ 1"),
)


class Odd:
    """Draws values that do not belong where they are put, and writes documents that hold them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._raw: list[str] = []

    def value(self, old: Any) -> Any:
        """Return something else in place of a value."""
        makers: list[Callable[[], Any]] = [
            lambda: self.rng.choice((None, True, False, [], {}, [[]], [None], {"": None})),
            lambda: self.rng.choice(_TEXTS),
            lambda: self.rng.choice(_NUMBERS),
            lambda: self.rng.choice(_WORDS),
            lambda: self.raw(self.rng.choice(_RAW)),
            lambda: self._near(old),
            lambda: self._near(old),
            lambda: [copy.deepcopy(old)] * self.rng.choice((1, 2, 50)),
            lambda: {"name": copy.deepcopy(old)},
            lambda: str(old)[:2000],
        ]
        return self.rng.choice(makers)()

    def _near(self, old: Any) -> Any:
        if isinstance(old, bool) or old is None:
            return not old
        if isinstance(old, int | float):
            factor = self.rng.choice((-1, 0, 10, 1e-3, 1e3, 1e6, 1e12))
            return self.rng.choice((old * factor, old + 1, -old, float(old), str(old)))
        if isinstance(old, str):
            return self.rng.choice((old[1:], old * 2, old.upper(), old + "\x00", self._number(old)))
        entries = list(old.values()) if isinstance(old, dict) else list(old)
        return self.rng.choice((entries, dict(enumerate(map(str, entries))), entries[:1]))

    def _number(self, old: str) -> Any:
        return int(old) if old.isdecimal() and len(old) < 400 else len(old)

    def raw(self, text: str) -> str:
        """Return a mark that `written` replaces by this text, which need not be JSON."""
        self._raw.append(text)
        return f"@raw:{len(self._raw) - 1}@"

    def key(self, key: str) -> str:
        """Return a key that `written` writes like this one, which is there already."""
        return f"{key}@again:{self.rng.randrange(1000)}@"

    def written(self, document: Any) -> bytes:
        """Return the document as JSON, or what looks like it."""
        indent, ascii = self.rng.choice((None, None, 1)), self.rng.random() < 0.5
        text = json.dumps(document, indent=indent, ensure_ascii=ascii)
        text = re.sub(r"@again:\d+@", "", text)
        text = re.sub(r'"@raw:(\d+)@"', lambda match: self._raw[int(match[1])], text)
        return text.encode("utf-8", "surrogatepass")


def mutated_document(document: Any, odd: Odd, many: int = 4) -> Any:
    """Change a few values of a document, in place; return it, or what takes its place."""
    for _ in range(odd.rng.randint(1, many)):
        sites = _sites(document)
        if not sites:
            return odd.value(document)
        odd.rng.choice(_MUTATIONS)(sites, odd)
    return document


def _sites(document: Any) -> list[Site]:
    sites: list[Site] = []
    open_values = [document] if isinstance(document, dict | list) else []
    while open_values:
        value = open_values.pop()
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            sites.append((value, key))
            if isinstance(value[key], dict | list):
                open_values.append(value[key])
    return sites


def _drawn(sites: list[Site], odd: Odd) -> list[Site]:
    """Return a site, or all that have a key of this name: the name is drawn first, then where."""
    if odd.rng.random() < 0.15:
        return [odd.rng.choice(sites)]
    by_key: dict[str, list[Site]] = {}
    for holder, key in sites:
        if isinstance(holder, dict):
            by_key.setdefault(str(key), []).append((holder, key))
    if not by_key:
        return [odd.rng.choice(sites)]
    alike = by_key[odd.rng.choice(sorted(by_key))]
    share = odd.rng.choice((0.0, 0.0, 0.1, 0.5, 1.0))
    return [site for site in alike if odd.rng.random() < share] or [odd.rng.choice(alike)]


def _replace(sites: list[Site], odd: Odd) -> None:
    drawn = _drawn(sites, odd)
    value = odd.value(drawn[0][0][drawn[0][1]])
    for holder, key in drawn:
        holder[key] = copy.deepcopy(value)


def _replace_each(sites: list[Site], odd: Odd) -> None:
    for holder, key in _drawn(sites, odd)[:300]:  # one may stand at several places
        holder[key] = odd.value(holder.get(key) if isinstance(holder, dict) else holder[key])


def _remove(sites: list[Site], odd: Odd) -> None:
    for holder, key in _drawn(sites, odd):
        if key in holder if isinstance(holder, dict) else key < len(holder):
            del holder[key]


def _again(sites: list[Site], odd: Odd) -> None:
    for holder, key in _drawn(sites, odd):
        if isinstance(holder, dict):
            holder[odd.key(str(key))] = odd.value(holder[key])


def _swap(sites: list[Site], odd: Odd) -> None:
    """Give two of them each other's value: ids, times, or whole branches."""
    drawn = [*_drawn(sites, odd), odd.rng.choice(sites)]
    (first, at), (other, there) = drawn[0], drawn[odd.rng.randrange(1, len(drawn))]
    if first is not other and not isinstance(other[there], dict | list):
        first[at], other[there] = other[there], copy.deepcopy(first[at])


def _reorder(sites: list[Site], odd: Odd) -> None:
    lists = [holder for holder, _ in sites if isinstance(holder, list)]
    if lists:
        odd.rng.shuffle(odd.rng.choice(lists))


def _repeat(sites: list[Site], odd: Odd) -> None:
    lists = [(holder, key) for holder, key in sites if isinstance(holder, list)]
    if lists:
        holder, key = odd.rng.choice(lists)
        holder[key:key] = [copy.deepcopy(holder[key]) for _ in range(odd.rng.choice((1, 3, 60)))]


def _empty(sites: list[Site], odd: Odd) -> None:
    holders = [holder for holder, _ in sites]
    odd.rng.choice(holders).clear()


def _move_numbers(sites: list[Site], odd: Odd) -> None:
    """Scale or shift all numbers of a name."""
    factor = odd.rng.choice((-1, 0, 1, 1e-6, 1e3, 1e9, 1e15))
    offset = odd.rng.choice((0, 0, -1, 1e12, -1e16, 2**62))
    for holder, key in _drawn(sites, odd):
        if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = holder[key] * factor + offset


_MUTATIONS = (
    *(_replace, _replace, _replace, _replace_each, _remove, _remove, _again, _swap, _swap),
    *(_reorder, _repeat, _empty, _move_numbers, _move_numbers),
)


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes damaged: cut, torn, overwritten, repeated, or in another encoding."""
    for _ in range(rng.randint(1, 3)):
        data = _damaged(data, rng)
    return data


def _damaged(data: bytes, rng: random.Random) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.choice((1, 2, 8, 60, 1000))
    before, after = data[:at], data[at:]
    drawn: list[Callable[[], bytes]] = [
        lambda: before,
        lambda: after,
        lambda: before + after[length:],
        lambda: before + rng.randbytes(length) + after[length:],
        lambda: before + bytes(length) + after,
        lambda: before + after[:length] * 3 + after,
        lambda: before + rng.choice(b'[]{}",:\\').to_bytes(1, "big") + after[1:],
        lambda: before + b"\xff\xfe\xc3(" + after,
        lambda: data.decode("utf-8", "replace").encode(rng.choice(_ENCODINGS)),
        lambda: b"\xef\xbb\xbf" + data,
        lambda: b"\n".join(rng.sample(lines := data.split(b"\n"), len(lines))),
        lambda: data + data,
        lambda: data + bytes(length),
    ]
    return rng.choice(drawn)()


_ENCODINGS = ("utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-32", "utf-7")


def packed(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes compressed, perhaps wrongly."""
    zipped = gzip.compress(data, 1, mtime=0)
    half = len(data) // 2
    parts = gzip.compress(data[:half], mtime=0), gzip.compress(data[half:], mtime=0)
    at = rng.randrange(len(zipped))
    drawn: list[Callable[[], bytes]] = [
        lambda: zipped,
        lambda: zipped,
        lambda: zipped[:at],
        lambda: gzip.compress(zipped, mtime=0),
        lambda: b"".join(parts),
        lambda: parts[0] + parts[1][: rng.randrange(len(parts[1]))],
        lambda: zipped[:at] + rng.randbytes(3) + zipped[at + 3 :],
        lambda: zipped + b"garbage",
        lambda: zipped[:-8] + bytes(8),
        lambda: bz2.compress(data),
        lambda: lzma.compress(data, preset=0),
        lambda: b"\x28\xb5\x2f\xfd" + data[:100],
        lambda: gzip.compress(b"", mtime=0),
        lambda: b"",
    ]
    return rng.choice(drawn)()
