"""A fix file -> what its trials need to know of it."""

from __future__ import annotations

from typing import Any

from torchdoctor.facts.lookup import no_second_loader, training_loaders
from torchdoctor.trials.arms import FixFacts
from torchdoctor.trials.ladder import Ladder
from torchdoctor.trials.samples import Preparation
from torchdoctor.words import Recording


def fix_facts(module: Any, recording: Recording) -> FixFacts:
    """What a fix says of itself, for this program (`candidates.FixModule` names the fields)."""
    loaders = training_loaders(recording)
    return FixFacts(
        keeps_results=module.KEEPS_RESULTS,
        setup_s=getattr(module, "SETUP_S", 0.0),
        includes=frozenset(module.includes(recording) if hasattr(module, "includes") else ()),
        phases=frozenset(getattr(module, "PHASES", ())),
        switches=_switches(module, recording),
        ladder=_ladder(module, recording),
        how=Preparation(
            draws_random=loaders[0].draws_random if loaders else None,
            elsewhere=getattr(module, "PREPARES_ELSEWHERE", False),
            reorders=getattr(module, "REORDERS", False),
        ),
        doubted=hasattr(module, "doubt") and module.doubt(recording) is not None,
    )


def _switches(module: Any, recording: Recording) -> bool:
    """Whether it can be switched on and off in this program as it runs."""
    if module.WHEN != "between steps":
        return False
    by_second = getattr(module, "BY_SECOND_LOADER", False)
    return not by_second or no_second_loader(recording) is None


def _ladder(module: Any, recording: Recording) -> Ladder | None:
    """Where a fix says between which numbers a setting may lie, and it can be applied at all."""
    if not hasattr(module, "ladder") or module.refuses(recording):
        return None
    return Ladder(**module.ladder(recording))
