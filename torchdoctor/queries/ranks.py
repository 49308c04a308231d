"""Which rank of a job the others wait for, and what their links reach."""

from collections.abc import Sequence
from typing import Any

from torchdoctor.queries.gpu_data_sheets import data_sheet
from torchdoctor.schema import Evidence, RankTime, Recording, fact

WAITS_FOR_RANKS = "waits-for-ranks"  # a fact of a rank's share of communication
NOTABLE = 0.05  # of a step: less is within what ranks differ from each other
_SLOW = 0.4  # of the slowest link on the data sheet: no link in good order is slower
_PCIE = 16e9  # bytes/s each way of the slowest link that GPUs of today have
_SEE = "a rank comes late to all of them, or they leave the machine."
_FASTEST = "The fastest large {kind} moves {gb_per_s:.3g} GB/s (bus bandwidth)"
LINKS = {  # the sentences of `links`
    "fastest": _FASTEST + ".",
    "below-pcie": _FASTEST + "; PCIe carries {pcie:.3g} or more: " + _SEE,
    "links": _FASTEST
    + "; links of the {gpu} carry {slowest:.3g}[ (PCIe) to {fastest:.3g} (NVLink)] GB/s each way.",
    "below-links": "That is far less: " + _SEE,
}
ACCUMULATED = 1.5  # batches to an update, from where on all but the last one's exchange is waste


def own_s(rank: RankTime) -> float:
    """Return a step's time without what communication adds to it."""
    return rank.step_s - (rank.communication_exposed_s or 0.0)


def latest(ranks: Sequence[RankTime]) -> RankTime:
    """Return the rank that the others wait for: that waits least, or without clocks works most."""
    waits = [rank for rank in ranks if rank.wait_s is not None]
    if waits and max(wait.wait_s or 0.0 for wait in waits) >= NOTABLE * max(
        wait.step_s for wait in waits
    ):
        return min(waits, key=lambda rank: rank.wait_s or 0.0)
    return max(ranks, key=own_s)


def waiting(ranks: Sequence[RankTime]) -> float | None:
    """Return the mean share of the step that ranks wait for the latest; None: not known."""
    last = latest(ranks)
    shares = [
        rank.wait_s / rank.step_s for rank in ranks if rank.wait_s is not None and rank is not last
    ]
    return sum(shares) / len(shares) if shares else None


def links(recording: Recording) -> list[Evidence]:
    """Return what the fastest collective reached beside what the GPU's links could."""
    traced = recording.trace
    kinds = (
        [collective for collective in traced.collectives if collective.best_bytes_per_s]
        if traced is not None
        else []
    )
    best = max(kinds, key=lambda kind: kind.best_bytes_per_s or 0.0, default=None)
    if best is None or best.best_bytes_per_s is None:
        return []
    reached: dict[str, Any] = {"kind": best.kind, "gb_per_s": best.best_bytes_per_s / 1e9}
    names = {gpu.name for gpu in recording.environment.used_gpus}
    sheet = data_sheet(next(iter(names))) if len(names) == 1 else None
    if sheet is None or sheet.links is None:
        below = best.best_bytes_per_s < _SLOW * _PCIE
        return [fact("below-pcie" if below else "fastest", **reached, pcie=_PCIE / 1e9)]
    slow, fast = (link / 1e9 for link in sheet.links)
    fastest = fast if fast != slow else None
    evidence = [fact("links", **reached, gpu=sheet.name, slowest=slow, fastest=fastest)]
    if best.best_bytes_per_s < _SLOW * sheet.links[0]:
        evidence.append(fact("below-links"))
    return evidence


def batches_of_update(recording: Recording) -> float | None:
    """Return the backward passes to an optimizer step; None without DistributedDataParallel."""
    steps = recording.steps
    models = recording.main.models
    if not any(model.data_parallel == "DistributedDataParallel" for model in models):
        return None
    if steps is None or steps.optimizer_steps_per_step <= 0:
        return None
    return steps.backwards_per_step / steps.optimizer_steps_per_step
