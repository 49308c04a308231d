"""Validation builds a graph that nobody uses.

What it means
-------------
A forward in eval mode with gradients enabled keeps every activation for a backward that never
comes: more time, and much more memory.

How it is measured
------------------
Forwards of a module with training=False while gradients are enabled, and the time of evaluation
sections.

Not to be confused with
-----------------------
Training a frozen part in eval mode, where a backward follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "cpu"
THRESHOLD = 0.05
THRESHOLD_UNIT = "% of the training time in such evaluation"
THRESHOLD_SOURCE = "torchdoctor: the tree's bound for a moderate share"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.words import Finding

    steps = recording.steps
    models = [m for m in recording.main.models if m.eval_forwards_with_grad > 0]
    if steps is None or steps.mean_s <= 0 or not models:
        return []
    share = steps.evaluation_s / steps.mean_s
    if share < THRESHOLD:
        return []
    model = max(models, key=lambda m: m.eval_forwards_with_grad)
    return [
        Finding(
            check="evaluation-with-gradients",
            share_of_step=share,
            evidence=[
                f"{model.eval_forwards_with_grad} forwards in eval mode built a graph; evaluation "
                f"takes {share:.0%} of the training time."
            ],
            location=model.eval_with_grad_location,
            severity="high" if share >= 0.2 else "moderate",
        )
    ]


FIRES = [
    {
        "steps": {"evaluation_s": 0.004},
        "processes": [
            {"pid": 1, "models": [{"ident": 0, "eval_forwards": 20, "eval_forwards_with_grad": 20}]}
        ],
    }
]
QUIET = [
    {
        "steps": {"evaluation_s": 0.004},
        "processes": [{"pid": 1, "models": [{"ident": 0, "eval_forwards": 20}]}],
    }
]
