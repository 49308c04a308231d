"""The order of the comparison, step times first, and its answer in one sentence."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torchdoctor import __version__
from torchdoctor.compare.by_call import by_call, marks_no_steps
from torchdoctor.compare.changes import figures, findings, operators, parts
from torchdoctor.compare.step_times import Side, other_load, sides, unit_of_both, verdict
from torchdoctor.compare.surroundings import (
    OTHER_BATCH,
    another_workload,
    environment,
    remarks,
    workload,
)
from torchdoctor.reports.compared_facts import with_sentences
from torchdoctor.schema import Evidence, Interval, Remark, Report, fact
from torchdoctor.schema.comparison import Comparison, FindingChange, PartChange


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
    weaknesses = list(remarks(first, second, interval))
    if reasons:
        evidence = _not_the_same(reasons, first, second)
        answer = "not comparable"
        interval = None
    elif answer in ("same", "unclear"):
        evidence = _no_change(answer, first, second, interval, changes, load)
    else:
        evidence = _change(first, second, interval, changed, changes)
    if parts_are == "none":
        weaknesses.append(Remark(severity="beware", fact="change-not-located"))
    compared = Comparison(
        torchdoctor_version=__version__,
        kind="inference" if a.kind == b.kind == "inference" else "training",
        unit=unit_of_both(first, second),
        a=first.time,
        b=second.time,
        verdict=answer,
        answer=evidence,
        ratio=second.time.step_s / first.time.step_s,
        speedup=interval,
        figures=figures(first, second),
        parts_are=parts_are,
        parts=changed,
        operators=operators(a, b),
        findings=changes,
        environment=differences,
        workload=workload(first, second),
        remarks=weaknesses,
    )
    return with_sentences(compared)


def _no_change(
    verdict: str,
    a: Side,
    b: Side,
    interval: Interval | None,
    findings: list[FindingChange],
    load: dict[str, float] | None,
) -> list[Evidence]:
    """Return the facts of "same" or "unclear". `load`: of the machine, where it changed."""
    times = {"a_s": a.time.step_s, "b_s": b.time.step_s}
    if verdict == "same":
        news = _news([change for change in findings if change.change == "new"])
        return [fact("no-difference", **_values(times)), *news]
    bounds = {} if interval is None else asdict(interval)
    if load is not None:
        return [fact("other-programs", **_values(times | bounds | load))]
    why = "within-spread" if interval is None else "launches-vary"
    return [fact(why, **_values(times | bounds))]


def _change(
    a: Side,
    b: Side,
    interval: Interval | None,
    parts: list[PartChange],
    findings: list[FindingChange],
) -> list[Evidence]:
    """Return how much slower or faster B is, and where the change lies."""
    change_s = b.time.step_s - a.time.step_s
    times = {"a_s": a.time.step_s, "b_s": b.time.step_s}
    verdict = "slower" if change_s > 0 else "faster"
    ratio = b.time.step_s / a.time.step_s
    kind = "changed" if a.is_trace or b.is_trace else "changed-in-one-launch"
    answer = [fact(kind, **_values(times), ratio=ratio)]
    if interval is not None:
        bounds = asdict(interval.inverse if change_s > 0 else interval)
        answer = [fact("changed-by-launches", **_values(times | bounds), verdict=verdict)]
    observed_s = b.parts_s - a.parts_s
    along = [part for part in parts if part.change_s and part.change_s * change_s > 0]
    part = max(along, key=lambda part: abs(part.change_s or 0.0), default=None)
    if part is None or part.change_s is None or observed_s * change_s <= 0:
        return answer  # the observed launches do not show the change
    of_all = part.change_s / observed_s
    answer.append(fact("part-changed", part=part.name, change_s=part.change_s, of_all=of_all))
    # What came explains a slower step, what went a faster one.
    came = "new" if change_s > 0 else "gone"
    return answer + _news(
        [finding for finding in findings if finding.change == came and finding.branch == part.name]
    )


def _not_the_same(reasons: Sequence[Evidence], a: Side, b: Side) -> list[Evidence]:
    """Return what differs; a ratio per sample where nothing but batches differs."""
    head = [fact("not-the-same-workload"), *reasons]
    times = _values({"a_s": a.time.step_s, "b_s": b.time.step_s})
    if any(reason.fact != OTHER_BATCH for reason in reasons):
        return [*head, fact("no-ratio", **times)]
    assert a.time.samples_per_step and b.time.samples_per_step
    per_sample = [side.time.step_s / (side.time.samples_per_step or 1.0) for side in (a, b)]
    return [*head, fact("per-sample", **times, ratio=per_sample[1] / per_sample[0])]


def _values(values: dict[str, float]) -> dict[str, Any]:
    return dict(values)


def _news(findings: list[FindingChange]) -> list[Evidence]:
    """Return the fact of the first of the findings; none without one."""
    if not findings:
        return []
    change = findings[0]
    if change.change == "new":
        kind = "new-finding" if change.a_s is None else "crossed-threshold"
    else:
        kind = "finding-gone" if change.b_s is None else "fell-below-threshold"
    return [fact(kind, check=change.check, place=change.b_place or change.a_place or None)]
