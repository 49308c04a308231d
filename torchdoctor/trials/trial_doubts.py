"""What weakens the verdicts of trials and their recommendation, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchdoctor.trials import compare
from torchdoctor.trials.arms import label
from torchdoctor.trials.bounds import doubt
from torchdoctor.trials.schedule import FEWEST_PAIRS

if TYPE_CHECKING:
    from torchdoctor.trials.outcome import Judgement


def doubts_of(judgement: Judgement) -> list[str]:
    """What weakens the verdicts and the recommendation, one sentence each."""
    doubts, noise = [], judgement.noise_floor
    if noise is not None and compare.excludes_one(noise):
        doubts.append(
            f"The untouched program against itself came out at {noise.estimate:.3f}x "
            f"[{noise.low:.3f}, {noise.high:.3f}], which should hold 1: the machine was too noisy "
            f"to trust differences below {100 * compare.reach(noise):.1f} %."
        )
    best = next(iter(judgement.recommendable()), None)
    if best is not None and best.numerics.classification == "not-comparable":
        doubts.append(
            f"Whether {label(best.arm.fixes)} changes training could not be checked: "
            f"{best.numerics.reason}"
        )
    if best is not None and len(best.differences) < FEWEST_PAIRS:
        doubts.append(
            f"{label(best.arm.fixes)} is recommended from {len(best.differences)} pairs alone, for "
            "want of time: measure it again with more (--budget)."
        )
    unlikely = [*judgement.faster(), *judgement.not_believed]
    doubts += [said for one in unlikely if (said := doubt(one)) is not None]
    return doubts
