"""The order of the comparison, step times first, and its answer in one sentence."""

from collections.abc import Sequence

from torchdoctor import __version__
from torchdoctor.compare.by_call import by_call, marks_no_steps
from torchdoctor.compare.changes import figures, findings, operators, parts
from torchdoctor.compare.step_times import Side, other_load, sides, unit_of_both, verdict
from torchdoctor.compare.surroundings import (
    OTHER_BATCH,
    another_workload,
    doubts,
    environment,
    workload,
)
from torchdoctor.schema import Interval, Report
from torchdoctor.schema.comparison import Comparison, FindingChange, PartChange
from torchdoctor.schema.figures import (
    PHASE_LABELS,
    SHARE_LABELS,
    ratio,
    says_something,
    seconds,
    speedup,
)

_MOST, _MORE_THAN_ALL = 0.5, 1.05  # of the change


def compare(a: Report, b: Report, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Return what changed from A to B, called by these names; Inconclusive: without step time."""
    if marks_no_steps(a) or marks_no_steps(b):
        return by_call(a, b, names)
    first, second, interval = sides(a, b, names)
    load = other_load(first, second)
    answer = verdict(first, second, interval, load)
    parts_are, changed = parts(first, second)
    changes = findings(first, second)
    differences = environment(a, b)
    reasons = another_workload(first, second, differences)
    weaknesses = list(doubts(first, second, interval))
    if reasons:
        told = _not_the_same(reasons, first, second)
        answer = "not comparable"
        interval = None
    elif answer in ("same", "unclear"):
        told = _no_change(answer, first, second, interval, changes, load)
    else:
        told = _change(first, second, interval, changed, changes)
    if parts_are == "none":
        weaknesses.append("A or B does not say where its time goes: the change cannot be located.")
    return Comparison(
        torchdoctor_version=__version__,
        kind="inference" if a.kind == b.kind == "inference" else "training",
        unit=unit_of_both(first, second),
        a=first.time,
        b=second.time,
        verdict=answer,
        sentence=told,
        ratio=second.time.step_s / first.time.step_s,
        speedup=interval,
        figures=figures(first, second),
        parts_are=parts_are,
        parts=changed,
        operators=operators(a, b),
        findings=changes,
        environment=differences,
        workload=workload(first, second),
        doubts=weaknesses,
    )


def _no_change(
    verdict: str,
    a: Side,
    b: Side,
    interval: Interval | None,
    findings: list[FindingChange],
    load: str | None,
) -> str:
    """Return the sentence of "same" or "unclear". `load`: of the machine, where it changed."""
    times = _from_to(seconds(a.time.step_s), seconds(b.time.step_s))
    if verdict == "same":
        news = _news([change for change in findings if change.change == "new"])
        return f"No difference: B's {unit_of_both(a, b)} takes as long as A's ({times}){news}."
    why = load or "the launches vary too much"
    if interval is None:
        why = load or f"each side's {unit_of_both(a, b)} time lies within the other's spread"
    elif says_something(interval):
        times += f", 95 % interval of the speed-up {speedup(interval)}"
    return f"No difference is proven: {why} ({times})."


def _change(
    a: Side,
    b: Side,
    interval: Interval | None,
    parts: list[PartChange],
    findings: list[FindingChange],
) -> str:
    """Return how much slower or faster B is, and where the change lies."""
    change_s = b.time.step_s - a.time.step_s
    ratio_of_times = b.time.step_s / a.time.step_s
    times = _from_to(seconds(a.time.step_s), seconds(b.time.step_s))
    per = f"per {unit_of_both(a, b)} ({times})"
    head = f"B is {_times(ratio_of_times)} {per}"
    if interval is not None:
        figures = speedup(interval.inverse if change_s > 0 else interval)
        head = f"B is {figures} {'slower' if change_s > 0 else 'faster'} {per}"
    elif not (a.is_trace or b.is_trace):
        head = f"B looked {_times(ratio_of_times)} {per}, in one launch of each"
    observed_s = b.parts_s - a.parts_s
    along = [part for part in parts if part.change_s and part.change_s * change_s > 0]
    part = max(along, key=lambda part: abs(part.change_s or 0.0), default=None)
    if part is None or part.change_s is None or observed_s * change_s <= 0:
        return head + "."  # the observed launches do not show the change
    of_all = part.change_s / observed_s
    much = "Most of the change" if of_all >= _MOST else "The largest part of the change"
    if of_all > _MORE_THAN_ALL:
        much = "More than the whole change"
    # What came explains a slower step, what went a faster one.
    kind = "new" if change_s > 0 else "gone"
    news = _news([x for x in findings if x.change == kind and x.branch == part.name])
    label = {**SHARE_LABELS, **PHASE_LABELS}.get(part.name, part.name)
    sign = "-" if part.change_s < 0 else "+"
    return f"{head}. {much} lies in {label} ({sign}{seconds(abs(part.change_s))}){news}."


def _not_the_same(reasons: Sequence[str], a: Side, b: Side) -> str:
    """Return what differs; a ratio per sample where nothing but batches differs."""
    times = f"A's {unit_of_both(a, b)} takes {seconds(a.time.step_s)}, B's {seconds(b.time.step_s)}"
    head = f"Not the same workload: {'; '.join(reasons)}. {times}"
    if all(reason.startswith(OTHER_BATCH) for reason in reasons):
        assert a.time.samples_per_step and b.time.samples_per_step
        per_sample = [side.time.step_s / (side.time.samples_per_step or 1.0) for side in (a, b)]
        return f"{head}; per sample B is {_times(per_sample[1] / per_sample[0])}."
    return f"{head}. Times of different workloads cannot be compared, so no ratio is given."


def _times(ratio_of_times: float) -> str:
    word = "slower" if ratio_of_times > 1 else "faster"
    return f"{ratio(max(ratio_of_times, 1 / ratio_of_times))}x {word}"


def _from_to(old: str, new: str) -> str:
    """Return two times, the unit said once where it is the same: "12.1 -> 14.3 ms"."""
    figure, _, unit = old.rpartition(" ")
    return f"{figure if unit == new.rpartition(' ')[2] else old} -> {new}"


def _news(findings: list[FindingChange]) -> str:
    """Return the end of a sentence that names the first of the findings; "" without one."""
    if not findings:
        return ""
    change = findings[0]
    where = change.b_place or change.a_place
    named = f"{change.check} at {where}" if where else change.check
    if change.change == "new":
        crossed = change.a_s is not None
        return f": {named} crossed its threshold" if crossed else f": new finding {named}"
    return f": {named} {'is gone' if change.b_s is None else 'fell below its threshold'}"
