"""The order of the comparison: step times first, all else in their unit."""

from __future__ import annotations

from torchdoctor import __version__
from torchdoctor.compare.findings import findings
from torchdoctor.compare.sentence import not_the_same, sentence
from torchdoctor.compare.step_parts import figures, operators, parts
from torchdoctor.compare.step_times import other_load, sides, verdict
from torchdoctor.compare.surroundings import another_workload, doubts, environment, workload
from torchdoctor.compare.workloads import different
from torchdoctor.words import Report
from torchdoctor.words.comparison import Comparison

NOT_ALIKE = "The two do not look like the same workload"


def compare(a: Report, b: Report, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Return what changed from A to B.

    Args:
        a: the earlier report, or what is compared with.
        b: the other.
        names: what to call the two, e.g. their files.

    Raises:
        Inconclusive: one of them has no step time.
    """
    first, second, interval = sides(a, b, names)
    both = (first, second)
    ratio = second.step_s / first.step_s
    load = other_load(a, b, ratio)
    answer = verdict(both, interval, a, b, load)
    parts_are, changed = parts(a, b, both)
    changes = findings(a, b, both)
    differences = environment(a, b)
    reasons = another_workload(a, b, both, differences)
    weaknesses = doubts(a, b, both, interval, differences)
    if other := different(a, b):
        weaknesses.insert(
            0, f"{NOT_ALIKE}: {other}. The ratio of their times says nothing of either."
        )
    if reasons:
        answer, interval = "not comparable", None
    if parts_are == "none":
        weaknesses.append("One of them does not say where its time goes: the change has no place.")
    told = sentence(answer, both, interval, changed, changes, load)
    if other:
        told += f" {NOT_ALIKE}, see the doubts."
    return Comparison(
        torchdoctor_version=__version__,
        a=first,
        b=second,
        verdict=answer,
        sentence=not_the_same(reasons, both) if reasons else told,
        ratio=ratio,
        speedup=interval,
        figures=figures(a, b, both),
        parts_are=parts_are,
        parts=changed,
        operators=operators(a, b),
        findings=changes,
        environment=differences,
        workload=workload(a, b),
        doubts=weaknesses,
    )
