"""What launches of arms are expected to cost."""

from __future__ import annotations

import pytest

from torchdoctor.trials.arms import Arm, FixFacts
from torchdoctor.trials.launch_costs import LaunchCosts
from torchdoctor.trials.rounds import Slot
from torchdoctor.words import LaunchTiming


def arm(key: str, *seconds: float, setup_s: float = 0.0, keeps: str = "exactly") -> Arm:
    """One whose launches took so long, one after the other."""
    timing = LaunchTiming(ended="measured", step_s=[0.1])
    slots = [
        Slot(arm=key, timing=timing, began_s=0.0, ended_s=one, phase="screen") for one in seconds
    ]
    facts = FixFacts(setup_s=setup_s, keeps_results=keeps)
    return Arm(key=key, fixes=[(key, {})], facts=facts, slots=slots)


def test_a_set_takes_no_less_than_its_slowest_member() -> None:
    """A member that may change operators, and the launches of another one were forgotten."""
    costs = LaunchCosts(arm("baseline", 6.0), None)
    slow, precise = arm("slow", 14.0), arm("precise", 6.0, keeps="lower precision")
    assert costs.once_together_s([slow, precise]) == pytest.approx(8.0)
    compiled = arm("compile", 46.0, 8.0, setup_s=60.0)
    assert costs.once_together_s([compiled, precise]) == pytest.approx(40.0), "it compiles anew"
    assert costs.once_together_s([compiled, arm("same", 6.0)]) == pytest.approx(2.0)
