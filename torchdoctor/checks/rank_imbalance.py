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

from torchdoctor.queries.ranks import latest, own_s, waiting
from torchdoctor.schema import CheckSpec, RankTime, Recording, Symptom, Symptoms, fact

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
        fact(
            "works",
            rank=slowest.rank,
            seconds=own_s(slowest),
            ranks=len(ranks),
            mean_s=mean_s,
        )
    ]
    more = {name: part(slowest) - sum(map(part, rest)) / len(rest) for name, part in _PARTS.items()}
    least = _NAMED * sum(max(more_s, 0.0) for more_s in more.values())
    longer = sorted(((s, name) for name, s in more.items() if s >= least > 0), reverse=True)
    if longer:
        parts = [{"name": name, "seconds": more_s} for more_s, name in longer]
        evidence.append(fact("longer", parts=parts))
    if slowest.last_share is not None and slowest.last_share > 1.0 / len(ranks):
        evidence.append(fact("last", last_share=slowest.last_share))
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
    sentences={
        "works": "Rank {rank} works {seconds:seconds} of {each_step}, the mean of {ranks} ranks "
        "is {mean_s:seconds}: the others wait for it.",
        "longer": "What it takes longer than the others: {parts:each part}.",
        "part": "{name} +{seconds:seconds}",
        "last": "It comes last to {last_share:.0%} of the collectives.",
    },
    examine=_examine,
    watch_asks="uneven-ranks",
    fires=[{"ranks": [{**_EVEN, "rank": 0, "communication_exposed_s": 0.05}, _SECOND]}],
    quiet=[{"ranks": [{**_EVEN, "rank": 0}, _SECOND]}, {}],
)
