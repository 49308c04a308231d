"""One rank computes longer than the others, which wait for it.

## What it means
In synchronous training each step takes as long as the slowest rank. Every GPU of the job pays for
more data, longer sequences, a slower GPU or a busy host on one rank.

## What to do
The evidence names what the rank takes longer for. Kernels: give each rank as much work (lengths
sorted into buckets, as many samples, no larger shard of the model), or see whether its GPU is
slower or throttles. Data: compare its storage and its number of workers. Host: find other programs
on its CPUs, and work that only this rank does, such as logging and checkpoints of rank 0.

## How it is measured
From the traces of several ranks: the step without the exposed time in collectives, of the slowest
rank against the mean of all. Its difference from the other ranks is divided into kernels, waiting
for data, and the host with its copies.

## Not to be confused with
Communication that is slow by itself: then all ranks wait alike, and none of them computes longer.
"""

from collections.abc import Callable

from torchdoctor.facts.ranks import latest, own_s, waiting
from torchdoctor.words import CheckSpec, RankTime, Recording, Symptom, Symptoms

_NAMED = 0.01  # of the difference, from which a part of it is named


def _examine(recording: Recording) -> Symptoms:
    ranks = recording.ranks
    step_s = max((rank.step_s for rank in ranks), default=0.0)
    if len(ranks) < 2 or step_s <= 0:
        return
    slowest = latest(ranks)
    rest = [rank for rank in ranks if rank is not slowest]
    mean_s = sum(map(own_s, ranks)) / len(ranks)
    share = max((own_s(slowest) - mean_s) / step_s, waiting(ranks) or 0.0)
    if share < CHECK.threshold:
        return
    evidence = [
        f"Rank {slowest.rank} works {own_s(slowest) * 1e3:.1f} ms of each step, the mean of "
        f"{len(ranks)} ranks is {mean_s * 1e3:.1f} ms: the others wait for it."
    ]
    more = {name: part(slowest) - sum(map(part, rest)) / len(rest) for name, part in _PARTS.items()}
    least = _NAMED * sum(max(more_s, 0.0) for more_s in more.values())
    longer = sorted(((s, name) for name, s in more.items() if s >= least > 0), reverse=True)
    if longer:
        named = ", ".join(f"{name} +{more_s * 1e3:.3g} ms" for more_s, name in longer)
        evidence.append(f"What it takes longer than the others: {named}.")
    if slowest.last_share is not None and slowest.last_share > 1.0 / len(ranks):
        evidence.append(f"It comes last to {slowest.last_share:.0%} of the collectives.")
    yield Symptom(share=share, evidence=evidence)


_PARTS: dict[str, Callable[[RankTime], float]] = {
    "kernels": lambda rank: rank.kernel_s,
    "waiting for data": lambda rank: rank.data_loader_s,
    "host and copies": lambda rank: own_s(rank) - rank.kernel_s - rank.data_loader_s,
}
_EVEN = {"path": "t", "step_s": 0.1, "communication_exposed_s": 0.02}
_SECOND = {**_EVEN, "rank": 1}
CHECK = CheckSpec(
    branch="communication",
    threshold=0.10,
    unit="% of the step that the slowest rank works longer than the mean",
    source="torchdoctor: less is within what steps differ from each other",
    examine=_examine,
    fires=[{"ranks": [{**_EVEN, "rank": 0, "communication_exposed_s": 0.05}, _SECOND]}],
    quiet=[{"ranks": [{**_EVEN, "rank": 0}, _SECOND]}, {}],
)
