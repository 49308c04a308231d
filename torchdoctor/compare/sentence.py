"""The answer in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchdoctor.compare.step_times import parts_s
from torchdoctor.compare.surroundings import OTHER_BATCH
from torchdoctor.words import Interval
from torchdoctor.words.comparison import ComparedSide, FindingChange, PartChange
from torchdoctor.words.figures import (
    PHASE_LABELS,
    SHARE_LABELS,
    ratio,
    says_something,
    seconds,
    speedup,
    speedup_words,
)

_MOST, _MORE_THAN_ALL = 0.5, 1.05  # of the change


def sentence(
    verdict: str,
    sides: tuple[ComparedSide, ComparedSide],
    interval: Interval | None,
    parts: list[PartChange],
    findings: list[FindingChange],
    load: str | None = None,
) -> str:
    """Return what changed and where. `load`: of the machine, where it changed."""
    a, b = sides
    times = _from_to(seconds(a.step_s), seconds(b.step_s))
    if verdict == "same":
        news = _news(findings, lambda change: change.change == "new")
        return f"No difference: B's step takes as long as A's ({times}){news}."
    if verdict == "unclear":
        bounds = ""
        if interval is not None and says_something(interval):
            bounds = f", 95 % interval of the speed-up {speedup(interval)}"
        apart = "the launches vary too much"
        if interval is None:
            apart = "each side's step time lies within the other's spread"
        why = load or apart
        return f"No difference is proven: {why} ({times}{bounds})."
    change_s = b.step_s - a.step_s
    bounds = f"{_bounds(interval, change_s > 0)}; " if interval is not None else ""
    head = f"B is {_times(b.step_s / a.step_s)} per step ({bounds}{times})"
    if interval is None and {a.kind, b.kind} == {"run"}:
        head = f"B looked {_times(b.step_s / a.step_s)} per step in one launch of each ({times})"
    observed_s = parts_s(b) - parts_s(a)
    part = _largest(parts, change_s)
    if part is None or part.change_s is None or observed_s * change_s <= 0:
        return head + "."  # the observed launches do not show the change
    # What came explains a slower step, what went a faster one.
    kind = "new" if change_s > 0 else "gone"
    news = _news(findings, lambda change: change.change == kind and change.branch == part.name)
    return (
        f"{head}, {_much(part.change_s / observed_s)} {_label(part.name)} "
        f"({signed(part.change_s)}){news}."
    )


def not_the_same(reasons: Sequence[str], sides: tuple[ComparedSide, ComparedSide]) -> str:
    """Return what differs; a ratio per sample where nothing but batches differs."""
    a, b = sides
    named = "; ".join(reasons)
    times = f"A's step takes {seconds(a.step_s)}, B's {seconds(b.step_s)}"
    head = f"Not the same workload: {named}. {times}"
    if all(reason.startswith(OTHER_BATCH) for reason in reasons):
        assert a.samples_per_step and b.samples_per_step
        times_as = (b.step_s / b.samples_per_step) / (a.step_s / a.samples_per_step)
        return f"{head}; per sample B is {_times(times_as)}."
    return f"{head}, which says nothing of either program: no ratio is given."


def _label(part: str) -> str:
    """Return a part's label in the table below."""
    return {**SHARE_LABELS, **PHASE_LABELS}.get(part, part)


def _much(of_all: float) -> str:
    if of_all > _MORE_THAN_ALL:  # other parts went the other way
        return "more than all of it in"
    return "most of it in" if of_all >= _MOST else "the largest part of it in"


def _times(ratio_of_times: float) -> str:
    word = "slower" if ratio_of_times > 1 else "faster"
    return f"{ratio(max(ratio_of_times, 1 / ratio_of_times))}x {word}"


def _bounds(speedup_of_b: Interval, slower: bool) -> str:
    """Return the interval of what `_times` says."""
    return speedup_words(speedup_of_b.inverse if slower else speedup_of_b)[1]


def _from_to(old: str, new: str) -> str:
    """Return two times, the unit said once where it is the same: "12.1 -> 14.3 ms"."""
    figure, _, unit = old.rpartition(" ")
    return f"{figure if unit == new.rpartition(' ')[2] else old} -> {new}"


def signed(change_s: float) -> str:
    """Return a change of time with its sign: "+1.9 ms"."""
    return f"{'-' if change_s < 0 else '+'}{seconds(abs(change_s))}"


def _largest(parts: list[PartChange], change_s: float) -> PartChange | None:
    """Return the part that changed most in the direction of the whole."""
    along = [part for part in parts if part.change_s and part.change_s * change_s > 0]
    return max(along, key=lambda part: abs(part.change_s or 0.0), default=None)


def _news(findings: list[FindingChange], wanted: Callable[[FindingChange], bool]) -> str:
    change = next((finding for finding in findings if wanted(finding)), None)
    if change is None:
        return ""
    where = change.b_place or change.a_place
    named = f"{change.check} at {where}" if where else change.check
    if change.change == "new":
        return (
            f": new finding {named}" if change.a_s is None else f": {named} crossed its threshold"
        )
    return f": {named} {'is gone' if change.b_s is None else 'fell below its threshold'}"
