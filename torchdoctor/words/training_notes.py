"""What the fields of training trials mean: a part of `field_notes.py`."""

from __future__ import annotations

NOTES: dict[str, dict[str, str]] = {
    "TrainingTrial": {
        "fix": "Id of the fix.",
        "kind": "A learning-rate range test, or losses with and without it.",
        "verdict": "found: a rate; better, worse: the loss differs by more than other seeds make it; no-difference; shows-nothing: the launches cannot tell; not-decided: the budget ended during one of its launches; failed; not-tried.",
        "sentence": "What came out, or why nothing did.",
        "settings": "The values that were tried.",
        "range_test": "null: another kind, or it gave nothing.",
        "comparison": "null: another kind, or no pair of launches was complete.",
        "launches": "Launches with it; those of the untouched program serve all.",
        "cost_s": "Wall time of its launches.",
        "details": "What the fix noted in its last launch.",
    },
    "RangeTest": {
        "own_rate": "The program's own learning rate.",
        "lowest_rate": "The first rate that was tried.",
        "highest_rate": "The last one.",
        "steps": "Rates tried, one optimizer step each.",
        "launches": "Launches with different seeds; the more cautious rates of them are given.",
        "steepest_rate": "The rate at which the loss falls fastest; null: it falls at none.",
        "lowest_loss_rate": "The rate at which it stops falling; null: it falls at none.",
        "diverged_rate": "The rate at which it has begun to diverge; null: at none that was tried.",
        "max_rate": "Highest rate for a schedule: a tenth of `lowest_loss_rate`; null: the test does not show one.",
        "rates": "Of the smoothed curve of the first launch.",
        "losses": "The smoothed loss at each of `rates`.",
    },
    "LossComparison": {
        "steps": "Iterations of the shortest launch.",
        "pairs": "Launches with and without it, with the same seed.",
        "without": "Mean loss over the last third of the untouched launches; null: not finite.",
        "with_fix": "The same with it.",
        "difference": "With minus without, mean of the pairs.",
        "low": "Lower end of its 95 % t interval; null: below two pairs.",
        "high": "Upper end.",
        "seeds_spread": "How far the untouched program's losses lie apart by the seed alone; null: one seed.",
        "step_speedup": "Time of a step without it over that with it.",
    },
}
VERDICTS = (
    "found",
    "better",
    "worse",
    "no-difference",
    "shows-nothing",
    "not-decided",
    "failed",
    "not-tried",
)
