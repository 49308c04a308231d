"""What the report says of trials, whatever the format."""

from __future__ import annotations

from dataclasses import replace

import samples

from torchdoctor.records import Trial
from torchdoctor.reports.not_measured import not_measured


def test_refusals_that_begin_alike_are_one_row() -> None:
    none = "The training loop uses no torch DataLoader"
    reasons = {
        "loader-workers": f"{none}, so there are no workers to start.",
        "prefetch-factor": f"{none}, so nothing is prefetched.",
        "channels-last": "The model has no 2-D convolutions.",
    }
    rows = [Trial(fix=fix, verdict="refused", reason=why) for fix, why in reasons.items()]
    found = not_measured(replace(samples.loader_bound(), trials=rows))
    assert [(row.fixes, row.reason) for row in found] == [
        (["loader-workers", "prefetch-factor"], f"{none}."),
        (["channels-last"], reasons["channels-last"]),
    ]
