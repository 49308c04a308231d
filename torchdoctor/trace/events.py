"""Trace events as typed structs: decodes a run of comma-separated JSON events, however damaged.

Only complete ("X") events carry fields; others decode to empty structs, which is fast. A run that
does not decode is repaired, and if that does not help, read event by event around the damage.
"""

import bisect
import functools
import math
import operator
import re
from dataclasses import dataclass
from typing import Any

import msgspec

# Where one event ends and the next begins, or the array ends. Decoding proves a cut right: one
# inside a string or a nested list leaves a run that is no valid JSON.
_NEXT_EVENT = rb"\s*,\s*\{\s*\"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp|cname)\"\s*:"
EVENT_END = re.compile(rb"\}(?=" + _NEXT_EVENT + rb")")
_EVENT_OR_ARRAY_END = re.compile(rb"\}(?=" + _NEXT_EVENT + rb"|\s*\]|\s*\Z)")
_ARRAY_END = re.compile(rb"\s*\]")
_EVENT_START = re.compile(rb"\s*,?\s*")

_PHASES_WITHOUT_FIELDS = "BEiItfsMbenCNODPpRcVvSTFa"
_CUTS_PER_EVENT = 8  # false cuts inside one event that are tried before it counts as damaged
MOST_DAMAGED = 1000  # then the rest is given up
_ABSENT = msgspec.Raw()


class SliceArgs(msgspec.Struct, gc=False):
    """What the analysis reads from `args`; absent fields stay None, or empty."""

    correlation: int | None = None
    stream: int | None = None
    device: int | None = None
    bytes: int | float | None = None
    dims: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input Dims")
    dims_2020: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input dims")
    types: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input Strides")
    concrete: msgspec.Raw = msgspec.field(default=_ABSENT, name="Concrete Inputs")
    stack: msgspec.Raw = msgspec.field(default=_ABSENT, name="Call stack")
    sent: msgspec.Raw = msgspec.field(default=_ABSENT, name="In msg nelems")
    received: msgspec.Raw = msgspec.field(default=_ABSENT, name="Out msg nelems")
    dtype: msgspec.Raw = _ABSENT
    group: msgspec.Raw = msgspec.field(default=_ABSENT, name="Process Group Ranks")


class Slice(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event. `ts` and `dur` are microseconds; NaN where the event has none."""

    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = math.nan
    dur: float = math.nan
    args: SliceArgs | None = None


_PHASES: list[Any] = [
    msgspec.defstruct(f"Phase_{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)
    for phase in _PHASES_WITHOUT_FIELDS
]
# mypy cannot know a union that is made when this file is imported.
_TYPED: Any = msgspec.json.Decoder(list[functools.reduce(operator.or_, _PHASES, Slice)])  # type: ignore[misc]
_ARGUMENTS = msgspec.structs.fields(SliceArgs)


@dataclass
class Run:
    """Whole events separated by commas, as valid JSON, and the complete ones among them."""

    text: bytes | memoryview  # a view is of the reader's buffer: use it before the next block
    slices: list[Slice]


@dataclass(frozen=True, kw_only=True)
class Salvage:
    """What a damaged run gave: its parts, how many events were lost, and how far it was read."""

    runs: list[Run]
    damaged: int
    read: int  # bytes of the run that were read or skipped
    array_ended: bool  # the byte at `read` is the array's closing bracket


def decode_run(run: bytes | bytearray | memoryview) -> list[Slice] | None:
    """Decode whole events separated by commas, without the array's brackets; None: damaged."""
    document = b"".join((b"[", run, b"]"))
    try:
        return [event for event in _TYPED.decode(document) if type(event) is Slice]
    except msgspec.ValidationError:
        pass  # valid JSON with unexpected types or phases
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    try:
        loose = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return [_typed(event) for event in loose if isinstance(event, dict) and event.get("ph") == "X"]


def repair(run: bytes | bytearray) -> bytes:
    """Mend what writers of traces are known to break, without touching the structure."""
    text = _NOT_A_NUMBER.sub(rb"\1null", bytes(run).translate(_CONTROL_TO_SPACE))
    text = _ESCAPE.sub(lambda match: match[0] if match[1] else b"\\\\", text)
    return _LAST_COMMA.sub(b"", text).decode("utf-8", "replace").encode()


def salvage(run: bytes, more_follows: bool) -> Salvage:
    """Read the events that can be read from a run which does not decode as a whole.

    A run starts at an event and may end anywhere, also after the array's end. If `more_follows`,
    what looks damaged at the very end is left unread: it may be an event that is not all here.
    """
    runs: list[Run] = []
    damaged = read = 0
    array_ended = False
    cuts = [match.end() for match in _EVENT_OR_ARRAY_END.finditer(run)]
    first = 0  # index of the first cut that lies beyond `read`
    while first < len(cuts) and damaged < MOST_DAMAGED:
        good = _furthest_good_cut(run, read, cuts, first)
        if good is None:
            if more_follows and first + _CUTS_PER_EVENT > len(cuts):
                break
            damaged += 1
            read = cuts[first]
            first += 1
        else:
            text = run[read : cuts[good]]
            runs.append(Run(text, decode_run(text) or []))
            read = cuts[good]
            first = good + 1
            array_ended = _ARRAY_END.match(run, read) is not None
            if array_ended:
                break
        between = _EVENT_START.match(run, read)
        read = between.end() if between else read
    return Salvage(runs=runs, damaged=damaged, read=read, array_ended=array_ended)


def _furthest_good_cut(run: bytes, start: int, cuts: list[int], first: int) -> int | None:
    """Return the index of the last cut up to which the run decodes; None: not one event does."""

    def is_damaged(cut: int) -> bool:
        return decode_run(run[start : cuts[cut]]) is None

    tried = range(first, min(first + _CUTS_PER_EVENT, len(cuts)))
    good = next((cut for cut in tried if not is_damaged(cut)), None)
    if good is None:
        return None
    later = range(good + 1, len(cuts))  # damage is rare and may lie far away
    return good + bisect.bisect_left(later, True, key=is_damaged)


def _typed(event: dict[str, Any]) -> Slice:
    """Return the event with the fields that fit; a time that is no number becomes NaN."""
    args: dict[str, Any] = {}
    given = event.get("args")
    for field in _ARGUMENTS:
        value = given.get(field.encode_name) if isinstance(given, dict) else None
        if value is not None:
            is_raw = field.type is msgspec.Raw
            args[field.name] = msgspec.Raw(msgspec.json.encode(value)) if is_raw else _whole(value)
    pid, tid = event.get("pid"), event.get("tid")
    return Slice(
        cat=str(event.get("cat") or ""),
        name=str(event.get("name") or ""),
        pid=pid if isinstance(pid, int) else str(pid),
        tid=tid if isinstance(tid, int) else str(tid),
        ts=_number(event.get("ts")),
        dur=_number(event.get("dur")),
        args=SliceArgs(**args),
    )


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # a whole number that no float holds
        return math.nan


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if math.isfinite(number) else None


_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:nan|NaN|inf|Infinity)(?=\s*[,}\]])")
_LAST_COMMA = re.compile(rb"(?<=[}\]\"0-9]),(?=\s*(?:[}\]]|\Z))")  # Chrome's format allows it
_ESCAPE = re.compile(rb"\\(\\|[\"/bfnrt]|u[0-9a-fA-F]{4})|\\")
# Raw newlines and tabs inside strings are invalid JSON; outside strings a space does as well.
_CONTROL_TO_SPACE = bytes(32 if byte < 32 else byte for byte in range(256))
