"""Compares a candidate's samples by the fingerprints of the first batches. Pure.

A fingerprint holds hashes of a sample's input and label.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from torchdoctor.schema import Evidence, Fingerprint, fact

_CHANCE = 1e-6  # labels that agree with a smaller chance than this agree for a reason
_FEWEST = 8  # samples; fewer decide nothing


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How a candidate prepares its samples.

    draws_random: preparing them draws random numbers in the untouched program; None: not known.
    elsewhere: workers prepare them, each with a copy of the dataset. reorders: by design.
    """

    draws_random: bool | None = None
    elsewhere: bool = False
    reorders: bool = False

    @staticmethod
    def together(parts: "Iterable[Preparation]") -> "Preparation":
        """Return the preparation of fixes that are switched on together."""
        preparations = list(parts)
        return Preparation(
            draws_random=next(
                (p.draws_random for p in preparations if p.draws_random is not None), None
            ),
            elsewhere=any(p.elsewhere for p in preparations),
            reorders=any(p.reorders for p in preparations),
        )


@dataclass(frozen=True)
class SampleComparison:
    """The verdict on samples.

    state: "same" (sequence), "labels-same", "stateful" (labels alone are the same, and nothing was
    drawn at random), "reordered", "corrupt" (samples repeated, dropped or foreign), "varies" (the
    untouched program's own order differs from run to run), "unknown".
    """

    state: str
    why: Evidence | None = None  # what it rests on


def compare_samples(
    trial: Sequence[Fingerprint],
    baselines: Sequence[Sequence[Fingerprint]],
    seeds: Sequence[Sequence[Fingerprint]] = (),
    how: Preparation = Preparation(),
) -> SampleComparison:
    """Compare a candidate's samples with those of the untouched program, by their fingerprints.

    `baselines` have the same seed; `seeds` others, which show more of the program's samples.
    """
    runs = [list(b) for b in baselines if len(b) >= _FEWEST]
    if len(trial) < _FEWEST or not runs:
        return SampleComparison("unknown")
    length = min(len(trial), *(len(b) for b in runs))
    ours = list(trial[:length])
    theirs = runs[0][:length]
    if any(ours == b[:length] for b in runs):
        return SampleComparison("same", fact("samples-same", samples=length))
    if any(b[:length] != theirs for b in runs):
        return _where_order_varies(ours, [b[:length] for b in runs])
    extra = sum((Counter(ours) - Counter(theirs)).values())
    if extra == 0:
        return SampleComparison("reordered", fact("samples-reordered", samples=length))
    if how.reorders:
        return _another_order(ours, theirs)
    labels = _labels(ours)
    if labels == _labels(theirs) and _says_something(labels):
        return _same_labels(ours, theirs, how)
    repeated = _repeats(ours) - _repeats(theirs)
    everything = {f for b in (*runs, *seeds) for f in b}
    foreign = sum(f not in everything for f in ours)
    if repeated > 0:
        fault = fact("samples-repeated", repeated=repeated, samples=length)
    elif foreign == 0:
        fault = fact("samples-in-place-of-others", extra=extra, samples=length)
    else:
        fault = fact("samples-foreign", foreign=foreign, samples=length)
    return SampleComparison("corrupt", fault)


def _another_order(ours: list[Fingerprint], theirs: list[Fingerprint]) -> SampleComparison:
    """Compare samples that come in another order, of which only repeats can be told."""
    repeated = _repeats(ours) - _repeats(theirs)
    if repeated > 0:
        fault = fact("samples-repeated", repeated=repeated, samples=len(ours))
        return SampleComparison("corrupt", fault)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return SampleComparison(
        "reordered", fact("samples-reordered-by-design", shared=shared, samples=len(ours))
    )


def _where_order_varies(
    ours: list[Fingerprint], theirs: list[list[Fingerprint]]
) -> SampleComparison:
    """Compare samples if no order is the program's own: they must not repeat."""
    usual = max(_repeats(b) for b in theirs)
    repeated = _repeats(ours)
    if repeated > 2 * usual + 0.05 * len(ours):
        return SampleComparison(
            "corrupt",
            fact("samples-repeated-more", repeated=repeated, samples=len(ours), usual=usual),
        )
    return SampleComparison("varies", fact("samples-vary"))


def _same_labels(
    ours: list[Fingerprint], theirs: list[Fingerprint], how: Preparation
) -> SampleComparison:
    inputs = [_repeats([f.input for f in fs]) for fs in (ours, theirs)]
    if inputs[0] > inputs[1]:
        return SampleComparison(
            "corrupt",
            fact("inputs-repeated", repeated=inputs[0], samples=len(ours)),
        )
    if not how.elsewhere:
        return SampleComparison("labels-same", fact("inputs-differ"))
    if how.draws_random is False:
        return SampleComparison("stateful", fact("inputs-differ-by-state"))
    if how.draws_random:
        return SampleComparison("labels-same", fact("inputs-differ-by-augmentation"))
    return SampleComparison("labels-same", fact("inputs-differ-in-workers"))


def _labels(fingerprints: Sequence[Fingerprint]) -> list[str | None]:
    return [fingerprint.label for fingerprint in fingerprints]


def _repeats(fingerprints: Sequence[Hashable]) -> int:
    return len(fingerprints) - len(set(fingerprints))


def _says_something(labels: Sequence[str | None]) -> bool:
    """Return False if equal labels may be chance (one class only, or no labels)."""
    if None in labels:
        return False
    shares = [count / len(labels) for count in Counter(labels).values()]
    return len(labels) * math.log(sum(s * s for s in shares)) < math.log(_CHANCE)
