"""What a run on a busy machine cannot decide: whether workers and threads would gain.

Other programs hold the processors that these need; on a quiet machine they may well gain.
`queries.hardware.MUCH_LOAD` says how much is busy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchdoctor.queries.hardware import much_load
from torchdoctor.schema import Ending, OtherLoad, Trial
from torchdoctor.schema.specs import FixSpec

_UNDECIDED = ("same", "slower")
_OPEN = ("same", "slower", "unclear")


def judged(rows: Sequence[Trial], fixes: Mapping[str, FixSpec]) -> list[Trial]:
    """Return the trials; that workers or threads gain nothing is unclear on a busy machine."""
    return [
        replace(row, verdict="unclear")
        if row.on_busy_machine and row.verdict in _UNDECIDED and _needs_free_cpus(row, fixes)
        else row
        for row in rows
    ]


def ending_of(
    ending: Ending | None,
    rows: Sequence[Trial],
    load: OtherLoad | None,
    fixes: Mapping[str, FixSpec],
) -> Ending | None:
    """Return how the search ended: on a busy machine workers and threads stay open."""
    if ending is None or ending.reason != "nothing to gain" or load is None:
        return ending
    if much_load(load.held, load.usable) is None:
        return ending
    undecided = [row for row in rows if row.verdict in _OPEN and _needs_free_cpus(row, fixes)]
    return replace(ending, reason="busy machine") if undecided else ending


def _needs_free_cpus(row: Trial, fixes: Mapping[str, FixSpec]) -> bool:
    return any(fix in fixes and fixes[fix].needs_free_cpus for fix in row.fixes)
