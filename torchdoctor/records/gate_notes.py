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
        "doubts": "Everything that weakens the verdict.",
        "interrupted": "It ended early.",
        "run_folder": "Where logs and launches were written.",
    },
    "GateMetric": {
        "name": "step_time, samples_per_s, peak_memory or data_loader_share.",
        "reference": "Median over the reference's launches.",
        "new": "Median over the new version's launches.",
        "unit": "Of both.",
        "ratio": "New / reference with its 95 % interval; null: not paired.",
        "tolerance": "Accepted growth as a share; null: shown, never fails.",
        "verdict": "ok, worse or not measured.",
    },
}
