"""What a gate answers, as facts. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchdoctor.gate.decision import FAIL_FINAL, blind_spot, means_say_slower, state
from torchdoctor.schema import Evidence, Interval, fact
from torchdoctor.schema.gate import GateMetric

_SAYS_NOTHING = 20.0  # an upper end like this, of two or three pairs, is no figure


@dataclass(frozen=True, kw_only=True)
class Basis:
    """What a verdict rests on, beside the rows."""

    why: Evidence | None = None  # an undecided gate is undecided
    p: float | None = None  # two-sided, of no difference
    decides: Evidence | None = None  # what would decide a pass that proves little
    typical: bool = False  # typical steps decide, those that take far longer are not in the ratio
    mean: Interval | None = None  # new / reference of the mean step, where that does not decide


def answer(
    rows: Sequence[GateMetric], verdict: str, reference: str, basis: Basis = Basis()
) -> list[Evidence]:
    """Return the verdict as facts; `rows` are those of the table, step time first."""
    times = _times(rows[0].ratio)
    if verdict == "inconclusive":
        so_far = [fact("so-far", **times)] if times else []
        why = [basis.why] if basis.why is not None else []
        return [fact("undecided", reference=reference), *why, *so_far]
    if any(row.verdict == "worse" for row in rows):
        # The rate is the step time's figure, inverted.
        named = [row.name for row in rows if row.verdict == "worse" and row.name != "samples_per_s"]
        with_times = [row.name for row in rows if row.name in named and _times(row.ratio)]
        worse = fact("worse", reference=reference, names=named, with_times=with_times)
        return [worse, *_as_told(rows)]
    return [*_passed(rows[0], verdict, reference, basis), *_as_told(rows)]


def _as_told(rows: Sequence[GateMetric]) -> list[Evidence]:
    """Return which growth is allowed because the report of the applied patch told it."""
    return [
        fact("allowed-as-told", metric=row.name, told=row.told) for row in rows if row.grew_as_told
    ]


def _passed(time: GateMetric, verdict: str, reference: str, basis: Basis) -> list[Evidence]:
    """Return how much a pass proves."""
    times = _times(time.ratio)
    by_itself = state(verdict, time.ratio, time.tolerance)
    long_steps = []
    if means_say_slower(basis.mean, time.tolerance):
        long_steps = [fact("long-steps-slower", **_times(basis.mean))]
    decides = [basis.decides] if basis.decides is not None else []
    unseen = blind_spot(time.ratio) or 0.0
    about: dict[str, Any] = {"reference": reference, **times}
    if by_itself == "perhaps slower":
        limit = FAIL_FINAL if basis.p else None
        return [fact("perhaps-slower", **about, p=basis.p, limit=limit), *long_steps, *decides]
    if long_steps:
        return [fact("typical-not-proven", **about), *long_steps]
    if by_itself == "not seen well enough":
        return [fact("not-seen-well", **about, unseen=unseen if times else None), *decides]
    ruled_out = []
    if times:
        of = "typical-steps" if basis.typical else "all-steps"
        ruled_out = [fact("ruled-out", steps=of, unseen=unseen or None)]
    return [fact("not-slower", **about), *ruled_out]


def _times(ratio: Interval | None) -> dict[str, Any]:
    """Return a ratio as values of a fact; none where that is no figure."""
    return {} if ratio is None or ratio.high >= _SAYS_NOTHING else asdict(ratio)
