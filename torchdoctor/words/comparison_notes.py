"""What the fields of a comparison mean: a part of `field_notes.py`."""

from __future__ import annotations

NOTES: dict[str, dict[str, str]] = {
    "Comparison": {
        "schema_version": 'Version of these names, "1.x".',
        "torchdoctor_version": "The version that wrote the file.",
        "a": "What is compared with.",
        "b": "What is compared.",
        "verdict": "Of B: slower, faster, same, unclear where launches vary too much, or not "
        "comparable where the two are not the same workload.",
        "sentence": "The same in words, with where it lies.",
        "ratio": "B's step time / A's.",
        "speedup": "A's time / B's with Welch's interval; null: not both hold launches, or not "
        "comparable.",
        "figures": "Throughput, memory and what traces count, of both.",
        "parts_are": "Whether parts are branches of the tree or phases; none: not known.",
        "parts": "Seconds per step of each part, the largest change first.",
        "operators": "Operators that changed most, at most ten, the largest change first.",
        "findings": "New findings, then gone ones, then those that cost something else.",
        "environment": "Versions and devices that differ.",
        "workload": "What differs in what was run.",
        "doubts": "Everything that weakens the comparison.",
    },
    "ComparedSide": {
        "name": "The file.",
        "kind": "run or trace.",
        "step_s": "The step time that is compared.",
        "low_s": "Where its spread begins.",
        "high_s": "Where its spread ends.",
        "basis": "What step time and spread are of, in words.",
        "parts_s": "Mean step of the launch that was observed: the seconds of parts and findings are "
        "of this one.",
        "samples_per_step": "Samples that one step trains on.",
        "command": "What was run; of a trace, what diagnosed it.",
        "created": "When its report was made, ISO 8601 in UTC.",
    },
    "ComparedFigure": {
        "name": "What it is.",
        "a": "Of A.",
        "b": "Of B.",
        "unit": "s, bytes, share, or what stands behind the figure.",
    },
    "PartChange": {
        "name": "The branch or phase.",
        "a_s": "Seconds per step of A.",
        "b_s": "Seconds per step of B.",
        "change_s": "B - A; null: not measured in one of them.",
    },
    "OperatorChange": {
        "name": "The operator.",
        "change": "new, gone, changed; newly or no longer listed where the other's list is full.",
        "change_s": "B - A of the device's time or the host's own, whichever changed more.",
        "a_calls": "Calls per step of A.",
        "b_calls": "Calls per step of B.",
        "a_self_s": "Host time of its own per step of A.",
        "b_self_s": "Host time of its own per step of B.",
        "a_device_s": "Device time per step of A.",
        "b_device_s": "Device time per step of B.",
    },
    "FindingChange": {
        "check": "The check that found it.",
        "change": "new, gone or changed.",
        "branch": "The branch of the tree that it belongs to.",
        "a_s": "What it costs per step of A; of a new one what was below the threshold there.",
        "b_s": "What it costs per step of B; of a gone one what is below the threshold there.",
        "a_location": "Where, in A.",
        "b_location": "Where, in B.",
        "a_place": "The same relative to where the program ran.",
        "b_place": "The same relative to where the program ran.",
        "evidence": "Sentences with figures, of the side that has it; of B where both have.",
    },
    "Difference": {
        "name": "What differs.",
        "a": "Of A.",
        "b": "Of B.",
    },
}
