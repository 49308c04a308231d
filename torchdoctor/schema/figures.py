"""Numbers, paths and settings as text, with no more digits than they deserve."""

import math
import time
import unicodedata
from collections.abc import Mapping
from typing import Any

from torchdoctor.schema import FixSet, Interval, Location

MISSING = "-"
SHARE_LABELS = {
    "data_loader": "waiting for data",
    "memcpy": "device copies",
    "memset": "device memset",
    "communication": "communication",
    "gpu": "GPU kernels",
    "runtime": "GPU driver calls",
    "cpu": "CPU operators and Python",
    "other": "other",
}
PHASE_LABELS = {
    "data_wait": "waiting for data",
    "h2d_copy": "copies to device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other",
}
_GRADIENT_CALLS = ("call of torch.autograd.grad", "calls of torch.autograd.grad")
COMPUTED = {  # what shows that something is learned, by `Boundary.learned_by`
    "backward": ("backward pass", "backward passes"),
    "autograd.grad": _GRADIENT_CALLS,
    "torch.func": ("gradient by torch.func", "gradients by torch.func"),
    "create_graph": _GRADIENT_CALLS,
    "batch": ("batch", "batches"),
    "forward": ("backward pass", "backward passes"),
}
_SAYS_NOTHING = 30.0  # an interval whose bounds lie further apart is not worth its digits


def percent(share: float | None, against: float | None = None) -> str:
    """Return a share as "78 %", with the digits that tell it from the share `against` it."""
    if share is None or not math.isfinite(share):
        return "not measured"
    if 0 < share < 0.0005:
        return "<0.1 %"
    digits = 0 if abs(share) >= 0.0995 or share == 0 else 1
    text = f"{100 * share:.{digits}f}"
    if against is not None and share != against:
        while digits < 3 and float(text) == round(100 * against, digits):
            digits += 1
            text = f"{100 * share:.{digits}f}"
    return f"{text.removesuffix('.0')} %"


def quantity(value: float | None, unit: str, against: float | None = None) -> str:
    """Return a figure with its unit; the unit "share" is shown in percent."""
    if value is None or not math.isfinite(value):
        return "not measured"
    if unit == "share":
        return percent(value, against)
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".strip()


def ratio(value: float | None) -> str:
    """Return a speed-up without its x: two decimals, three close to 1, so that 1.004 is not 1."""
    if value is None or not math.isfinite(value):
        return "?"
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.3f}" if 0 < abs(value - 1) < 0.005 else f"{value:.2f}"


def says_something(interval: Interval) -> bool:
    """Return True if an interval bounds anything: two launches give one of hundreds of times."""
    return interval.low > 0 and interval.high / interval.low <= _SAYS_NOTHING


def speedup(interval: Interval | None, pairs: int = 0) -> str:
    """Return a speed-up as "1.83x (1.79-1.88)"; a wide one as "0.99x (0.17-5.66), 4 pairs"."""
    if interval is None:
        return MISSING
    with_interval = " ".join(speedup_parts(interval))
    number = f", {counted(pairs, 'pair')}" if pairs else ""
    return with_interval if says_something(interval) else f"{with_interval}{number}"


def speedup_parts(interval: Interval | None) -> tuple[str, str]:
    """Return "1.83x" and "(1.79-1.88)", for words that stand between them."""
    if interval is None:
        return MISSING, ""
    return f"{ratio(interval.estimate)}x", f"({ratio(interval.low)}-{ratio(interval.high)})"


def certain_speedup(interval: Interval) -> str:
    """Return a speed-up with its interval; of a useless interval only what is certain."""
    is_useless = not says_something(interval) and interval.low > 1
    return f"more than {ratio(interval.low)}x" if is_useless else speedup(interval)


def seconds(value: float | None) -> str:
    """Return a step's time: "93 us", "41.2 ms", "1.28 s"; from two minutes on "2 min 5 s"."""
    text, unit = time_and_unit(value)
    return text if unit is None else f"{text} {unit}"


def time_and_unit(value: float | None) -> tuple[str, str | None]:
    """Return a step's time and its unit; None: it has several, or was not measured."""
    if value is None or not math.isfinite(value):
        return "not measured", None
    if value >= 120:
        return duration(value), None
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if round(value * scale, 2) >= 1:
            return _three_digits(value * scale), unit
    return _three_digits(value * 1e6), "us"


def duration(value: float) -> str:
    """Return a time that a person waits: "38 s", "4 min 51 s", "1 h 5 min"."""
    total = max(round(value), 0)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s" if total % 60 else f"{total // 60} min"
    return f"{total // 3600} h {total % 3600 // 60} min"


def clock(unix_s: float) -> str:
    """Return a moment as "14:03:20", in local time."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def moment(unix_s: float) -> str:
    """Return a moment with its day, in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def _three_digits(value: float) -> str:
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:,.{digits}f}"


def memory(value: float | None) -> str:
    """Return the bytes as "420 MB" or "2.1 GB" (decimal)."""
    if value is None:
        return MISSING
    amount = abs(value)
    if amount >= 999.5e6:
        return f"{value / 1e9:.1f} GB" if amount < 99.5e9 else f"{value / 1e9:.0f} GB"
    return f"{value / 1e6:.0f} MB"


def binary_size(size_bytes: float) -> str:
    """Return the size of a disk or of a folder in memory as "1.5 GiB" or "64 MiB"."""
    unit, name = (2**30, "GiB") if size_bytes >= 2**30 else (2**20, "MiB")
    return f"{size_bytes / unit:.3g} {name}"


def exit_code(code: int) -> str:
    """Return how a program ended as "exit code 1", or "killed by signal 9" for -9."""
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"


def memory_change(value: float | None) -> str:
    """Return a difference of bytes with its sign: "+420 MB", "-1.2 GB", "0 MB"."""
    if value is None:
        return MISSING
    if abs(value) < 0.5e6:
        return "0 MB"
    return memory(value) if value < 0 else f"+{memory(value)}"


def settings(values: Mapping[str, Any]) -> str:
    """Return the settings of a fix as "num_workers=4, prefetch_factor=2"."""
    parts = []
    for name, value in values.items():
        if name == "loader" and value == 0:  # which one is said of a second loader alone
            continue
        if name.endswith("_bytes") and isinstance(value, int):
            parts.append(f"{name.removesuffix('_bytes')}={memory(value)}")
        else:
            parts.append(f"{name}={clean(str(value))}")
    return ", ".join(parts)


def fix_with_settings(fix: str, values: Mapping[str, Any]) -> str:
    """Return a fix as "loader-workers (num_workers=4)"."""
    text = settings(values)
    return f"{clean(fix)} ({text})" if text else clean(fix)


def fixes_with_settings(fixes: FixSet) -> str:
    """Return a set as "loader-workers (num_workers=4) + set-to-none"; "" of none."""
    return " + ".join(fix_with_settings(fix, values) for fix, values in fixes.items())


def fixes_alone(fixes: FixSet) -> str:
    """Return a set without its settings, as "loader-workers + set-to-none"."""
    return " + ".join(map(clean, fixes))


def settings_of_all(fixes: FixSet) -> str:
    """Return the settings of all fixes of a set in a row: "num_workers=4, threads=2"."""
    return ", ".join(text for values in fixes.values() if (text := settings(values)))


def place(location: Location | None, cwd: str = "", width: int | None = None) -> str:
    """Return a place as "train.py:41", relative to `cwd` if it lies there, cut from the left."""
    if location is None:
        return ""
    return shorten_left(f"{relative(clean(location.file), cwd)}:{location.line}", width)


def relative(path: str, cwd: str) -> str:
    """Return the path without `cwd` in front, where it lies below it."""
    prefix = cwd.rstrip("/") + "/"
    return path[len(prefix) :] if cwd and path.startswith(prefix) else path


def shorten_left(path: str, width: int | None) -> str:
    """Return the at most `width` characters of a path, its end kept: ".../models/train.py:41"."""
    if width is None or len(path) <= width:
        return path
    tail = path[-(width - 3) :] if width > 3 else ""
    slash = tail.find("/")
    if 0 <= slash < len(tail) // 2:  # cut at a folder where that costs little
        tail = tail[slash:]
    return f"...{tail}"


def source_line(text: str, longest: int) -> str | None:
    """Return a line of source, cut behind so many characters; None: there is none."""
    line = text.strip()
    return f"{line[: longest - 4].rstrip()} ..." if len(line) > longest else line or None


def clean(text: str) -> str:
    """Return text of a program or a file as it may be shown: `visible`, its tabs expanded."""
    return text if text.isprintable() else visible(text.expandtabs(4))


def visible(text: str) -> str:
    """Return text with what could steer a terminal, or hide in it, as its escape: "\\x1b".

    That is all of Unicode's control characters but newline and tab, those that turn the direction
    of text or are invisible, and its other ends of lines. Twice is the same as once.
    """
    if text.isprintable():
        return text
    return "".join(map(_visible, text.replace("\r\n", "\n")))


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    if character in "\n\t" or not (category[0] == "C" or category in ("Zl", "Zp")):
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def tally(counts: Mapping[str, int], learned_by: str) -> str:
    """Return how much was seen of each kind that tells steps; "30 batches fetched, ... seen"."""
    words = counts_in_words(counts, learned_by)
    return f"{words} seen" if words else "no pass or step had ended"


def counts_in_words(counts: Mapping[str, int], learned_by: str) -> str:
    """Return counts with their nouns: "30 batches fetched, 30 forward passes"; "" of none."""
    computed, plural = COMPUTED[learned_by]
    nouns = {
        "batch": ("batch fetched", "batches fetched"),
        "forward": ("forward pass", "forward passes"),
        "forward_after_first": (
            f"forward pass after the first {computed}",
            f"forward passes after the first {computed}",
        ),
        "computed": (computed, plural),
        "gradient_within": ("gradient within the loss", "gradients within the loss"),
        "optimizer": ("optimizer step", "optimizer steps"),
        "explicit": ("call of it", "calls of it"),
    }
    return ", ".join(f"{number} {nouns[kind][number != 1]}" for kind, number in counts.items())


def counted(number: float, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun, one decimal if it is not whole: "1 call", "2.5 copies"."""
    whole = number >= 10.0 or abs(number - round(number)) < 0.05
    text = f"{number:,.0f}" if whole else f"{number:.1f}"
    return f"{text} {singular if text == '1' else plural or singular + 's'}"
