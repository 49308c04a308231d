"""What the fields of a gate's result mean: a part of `field_notes.py`."""

from __future__ import annotations

NOTES: dict[str, dict[str, str]] = {
    "GateReport": {
        "schema_version": 'Version of these names, "1.x".',
        "torchdoctor_version": "The version that wrote the file.",
        "created": "When, ISO 8601 in UTC.",
        "workload": "What was run.",
        "environment": "The machine and the software it was measured on.",
        "reference": "What was compared with: a commit or a stored report.",
        "verdict": "The answer, which the exit code says as well.",
        "sentence": "The same in words.",
        "metrics": "One row for each figure.",
        "pairs": "Pairs of launches that were measured.",
        "per": "What a time is per: sample, or step where batches have no size.",
        "p_value": "Two-sided p of the paired t test; null: not paired.",
        "mean_ratio": "New / reference of the mean step, every block of steps counted, with its 95 % "
        "interval: beside the typical step's ratio, which does not see work that a few steps do; "
        "null where the mean decides, and below two pairs.",
        "blind_spot": "The largest slow-down that is not ruled out, as a share: the upper end of "
        "the 95 % interval, 0 where that is faster; null: below two pairs.",
        "measured": "side by side (both versions run in alternate blocks), in turns (one launch "
        "after the other) or stored (against a report).",
        "doubts": "Everything that weakens the verdict.",
        "interrupted": "It ended early.",
        "broken": (
            "The working tree's program failed, timed out or had no training step, so that nothing "
            "was compared (exit codes 3, 4, 5)."
        ),
        "run_folder": "Where logs and launches were written.",
    },
    "GateMetric": {
        "name": "step_time, samples_per_s, peak_memory or data_loader_share.",
        "reference": "Of the reference: step_time and samples_per_s are geometric means over the "
        "pairs, so that new / reference is the ratio; peak_memory is the median over its "
        "launches; data_loader_share is of one observing launch, with a tolerance the mean of two.",
        "new": "The same of the new version.",
        "unit": "Of both.",
        "ratio": "New / reference with its 95 % interval; null: not paired.",
        "tolerance": "Accepted growth as a share; null: shown, never fails.",
        "verdict": "ok, worse or not measured; of step time also perhaps slower (the interval "
        "leaves out no change and holds more than the tolerance, yet nothing is proven; or the "
        "mean step is slower while the typical one is not) or not seen "
        "well enough (a slow-down beyond the tolerance could have been missed): both pass.",
    },
}
