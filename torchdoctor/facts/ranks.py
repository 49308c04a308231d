"""Which rank of a job the others wait for, and what their links reach."""

from collections.abc import Sequence

from torchdoctor.facts.gpu_data_sheets import data_sheet
from torchdoctor.words import RankTime, Recording

NOTABLE = 0.05  # of a step: less is within what ranks differ from each other
_SLOW = 0.4  # of the slowest link on the data sheet: no link in good order is slower
_PCIE = 16e9  # bytes/s each way of the slowest link that GPUs of today have
_SEE = "a rank comes late to all of them, or they leave the machine."


def own_s(rank: RankTime) -> float:
    """Return a step's time without what communication adds to it."""
    return rank.step_s - (rank.communication_exposed_s or 0.0)


def latest(ranks: Sequence[RankTime]) -> RankTime:
    """Return the rank that the others wait for: that waits least, or without clocks works most."""
    waits = [rank for rank in ranks if rank.wait_s is not None]
    if waits and max(x.wait_s or 0.0 for x in waits) >= NOTABLE * max(x.step_s for x in waits):
        return min(waits, key=lambda rank: rank.wait_s or 0.0)
    return max(ranks, key=own_s)


def waiting(ranks: Sequence[RankTime]) -> float | None:
    """Return the mean share of the step that ranks wait for the latest; None: not known."""
    last = latest(ranks)
    shares = [x.wait_s / x.step_s for x in ranks if x.wait_s is not None and x is not last]
    return sum(shares) / len(shares) if shares else None


def links(recording: Recording) -> list[str]:
    """Return what the fastest collective reached beside what the GPU's links could."""
    traced = recording.trace
    kinds = [x for x in traced.collectives if x.best_bytes_per_s] if traced is not None else []
    best = max(kinds, key=lambda kind: kind.best_bytes_per_s or 0.0, default=None)
    if best is None or best.best_bytes_per_s is None:
        return []
    reached = f"The fastest large {best.kind} moves {best.best_bytes_per_s / 1e9:.3g} GB/s"
    names = {gpu.name for gpu in recording.environment.used_gpus}
    sheet = data_sheet(next(iter(names))) if len(names) == 1 else None
    if sheet is None or sheet.links is None:
        pcie = best.best_bytes_per_s < _SLOW * _PCIE
        text = f"; PCIe carries {_PCIE / 1e9:.3g} or more: {_SEE}" if pcie else "."
        return [f"{reached} (bus bandwidth){text}"]
    slow, fast = (link / 1e9 for link in sheet.links)
    could = f"{fast:.3g}" if slow == fast else f"{slow:.3g} (PCIe) to {fast:.3g} (NVLink)"
    text = f"{reached} (bus bandwidth); links of the {sheet.name} carry {could} GB/s each way."
    if best.best_bytes_per_s < _SLOW * sheet.links[0]:
        text += f" That is far less: {_SEE}"
    return [text]
