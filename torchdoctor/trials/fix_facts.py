"""Reads the facts of a fix that its trials need."""

from __future__ import annotations

from torchdoctor.facts.lookup import allows_second_loader, training_loaders
from torchdoctor.trials.arms import FixFacts, Ladder
from torchdoctor.trials.samples import Preparation
from torchdoctor.words import Recording
from torchdoctor.words.specs import FixSpec


def fix_facts(fix: FixSpec, recording: Recording) -> FixFacts:
    """Return the facts of a fix for this program."""
    loaders = training_loaders(recording)
    return FixFacts(
        keeps_results=fix.keeps_results,
        setup_s=fix.setup_s,
        includes=frozenset(fix.includes(recording)),
        phases=frozenset(fix.phases),
        switches=_switches(fix, recording),
        ladder=_ladder(fix, recording),
        how=Preparation(
            draws_random=loaders[0].draws_random if loaders else None,
            elsewhere=fix.prepares_elsewhere,
            reorders=fix.reorders,
        ),
        doubted=fix.doubt(recording) is not None,
        p_helps=fix.p_helps,
    )


def _switches(fix: FixSpec, recording: Recording) -> bool:
    """Return True if the fix can be switched on and off in this program as it runs."""
    if fix.when != "between steps":
        return False
    return not fix.by_second_loader or allows_second_loader(recording)


def _ladder(fix: FixSpec, recording: Recording) -> Ladder | None:
    """Return the setting of which more values may be tried; None: there is none."""
    if fix.refuses(recording) is not None:
        return None
    values = fix.ladder(recording)
    return None if values is None else Ladder(**values)
