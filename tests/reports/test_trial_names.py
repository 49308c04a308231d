"""What a set of fixes is called where there is little room."""

from __future__ import annotations

from torchdoctor.reports.screen_room import names_of
from torchdoctor.schema import FixSet


def workers_and_threads(workers: int) -> FixSet:
    return FixSet({"loader-workers": {"num_workers": workers}, "cpu-threads": {"num_threads": 1}})


def test_two_sets_of_the_same_fixes_are_told_apart_by_their_settings() -> None:
    """Two rows had one name, 8.09x beside the one and 4.38x beside the other."""
    two, four = names_of([workers_and_threads(2), workers_and_threads(4)])
    assert two != four and "num_workers=2" in two and "num_workers=4" in four
    [alone] = names_of([workers_and_threads(2)])
    assert len(alone) < len(two) and "num_workers" not in alone
