"""What a fix can do by the share of the step that it works on, against what was measured.

A fix cannot gain more than that share (Amdahl). It can cost more: workers compete with the model
for the cores. So a gain beyond the bound is never all the fix's own, and a loss beyond it (more
than if all that the fix works on took twice as long) may be. Either is mostly the noise of a
machine that changed between launches: it takes `FEWEST_PAIRS` pairs to be called faster or slower,
and a loss also an interval that lies beyond the bound as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torchdoctor.trials import compare
from torchdoctor.trials.arms import label
from torchdoctor.trials.evidence import BOUND_KNOWN_TO, Measured
from torchdoctor.trials.schedule import FEWEST_PAIRS


def beyond_belief(one: Measured, verdict: str) -> bool:
    """Whether a verdict ("faster", "slower") rests on too little for what the fix works on."""
    few = len(one.differences) < FEWEST_PAIRS
    if verdict == "faster":
        return few and one.beyond_bound
    if verdict != "slower" or one.bound is None:
        return False
    most = math.log(1.0 + _share(one.bound)) + BOUND_KNOWN_TO
    if one.gain >= -most:
        return False
    found = compare.interval(one.differences, looked=one.looked)
    return few or found is None or found.high >= math.exp(-most)


def bound_of(one: Measured, measured: Iterable[Measured]) -> float | None:
    """The most that its fixes can gain together, as a speed-up; None: not known of each of them.

    Shares may overlap, so that the sum of them is never too little.
    """
    if one.arm.candidate is not None or len(one.arm.fixes) < 2:
        return one.bound
    alone = {label(x.arm.fixes): x.bound for x in measured if len(x.arm.fixes) == 1}
    bounds = [alone.get(label([fix])) for fix in one.arm.fixes]
    shares = [_share(bound) for bound in bounds if bound is not None]
    if len(shares) < len(bounds) or sum(shares) >= 1:
        return None
    return 1.0 / (1.0 - sum(shares))


def doubt(one: Measured) -> str | None:
    """A sentence where a result lies beyond what the fix works on; None: it does not."""
    if one.bound is None:
        return None
    came = f"{label(one.arm.fixes)} came out at {math.exp(one.gain):.2f}x in "
    came += f"{len(one.differences)} pairs, but what it works on takes "
    if one.beyond_bound:
        return (
            f"{came}so little of the step that {one.bound:.2f}x is the most: the load of the "
            "machine changed between launches, or the step is another one by now. Measure it again "
            "with more pairs (--budget)."
        )
    if beyond_belief(one, "slower"):
        return (
            f"{came}{100 * _share(one.bound):.2g} % of the step: that is noise of the machine, or "
            "a cost of its own that the fix adds elsewhere, which so little cannot tell apart."
        )
    return None


def _share(bound: float) -> float:
    return 1.0 - 1.0 / bound
