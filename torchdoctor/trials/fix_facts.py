"""A fix file -> what its trials need to know of it."""

from __future__ import annotations

from typing import Any

from torchdoctor.records import Recording
from torchdoctor.trials.ladder import Ladder
from torchdoctor.trials.launches import FixFacts


def fix_facts(module: Any, recording: Recording) -> FixFacts:
    """What a fix says of itself, for this program (`candidates.FixModule` names the fields)."""
    return FixFacts(
        keeps_results=module.KEEPS_RESULTS,
        setup_s=getattr(module, "SETUP_S", 0.0),
        includes=frozenset(module.includes(recording) if hasattr(module, "includes") else ()),
        switches=module.WHEN == "between steps",
        ladder=_ladder(module, recording),
        reorders=getattr(module, "REORDERS", False),
    )


def _ladder(module: Any, recording: Recording) -> Ladder | None:
    """Where a fix says between which numbers a setting may lie, and it can be applied at all."""
    if not hasattr(module, "ladder") or module.refuses(recording):
        return None
    return Ladder(**module.ladder(recording))
