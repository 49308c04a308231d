"""What the verdict on a trace says of a bottleneck that hides behind something else."""

from __future__ import annotations

import pytest

from torchdoctor.checkup.trace_verdict import with_replay
from torchdoctor.words import Diagnosis, TraceStatistics
from torchdoctor.words.traced import BranchReplay, WhatIf


def said(
    bottleneck: str,
    replayed_s: float = 0.1,
    sentence: str = "It is slow.",
    explained_s: float = 0.1,
    **without_s: float,
) -> str:
    return verdict(bottleneck, replayed_s, sentence, explained_s, **without_s).sentence


def verdict(
    bottleneck: str,
    replayed_s: float = 0.1,
    sentence: str = "It is slow.",
    explained_s: float = 0.1,
    **without_s: float,
) -> Diagnosis:
    branches = {
        branch: BranchReplay(step_s=step_s, lowest_s=step_s) for branch, step_s in without_s.items()
    }
    replay = WhatIf(
        steps=4,
        of_steps=4,
        measured_s=0.1,
        replayed_s=replayed_s,
        explained_s=explained_s,
        branches=branches,
    )
    trace = TraceStatistics(path="t", steps=4, step_s=0.1, what_if=replay)
    return with_replay(Diagnosis(bottleneck=bottleneck, sentence=sentence), trace)


COMPUTES = "The GPU computes 70% of each step: it is the limit."


def test_the_bottleneck_is_what_removing_gains_most() -> None:
    """ "The GPU is the limit" stood beside 1.03x without its kernels."""
    moved = verdict("gpu", gpu=0.097, cpu=0.07, sentence=COMPUTES)
    assert moved.bottleneck == "cpu" and "is the limit" not in moved.sentence
    assert "1.43x" in moved.sentence and "1.03x" in moved.sentence, "both, so that it can be judged"
    assert verdict("memcpy", memcpy=0.09, gpu=0.06).bottleneck == "gpu"
    stays = verdict("gpu", gpu=0.05, cpu=0.07, sentence=COMPUTES)
    assert (stays.bottleneck, stays.sentence) == ("gpu", COMPUTES)


def test_the_profiler_makes_the_host_slow_so_only_far_more_moves_the_verdict_there() -> None:
    shown = verdict("data_loader", data_loader=0.08, cpu=0.05)
    assert shown.bottleneck == "data_loader"
    assert "1.25x" in shown.sentence and "2.00x" in shown.sentence
    assert verdict("data_loader", data_loader=0.09, cpu=0.05).bottleneck == "cpu"


def test_what_the_replay_denies_is_not_called_the_limit() -> None:
    """ "It is the limit. ... hides behind something else" were two sentences of one verdict."""
    text = said("gpu", gpu=0.099, cpu=0.096, sentence=COMPUTES)
    assert text.startswith("The GPU computes 70% of each step. By replay")
    assert "1.01x as fast without the GPU's kernels" in text
    # Driver calls are the host's: without them, three times as fast is a gain of its branch.
    assert said("cpu", cpu=0.099, runtime=0.033) == "It is slow."


def test_a_cost_that_gains_nothing_says_why_also_where_nothing_else_gains() -> None:
    """ "Copies hold up 41 %", and 1.02x to gain: no sentence told how both could be true."""
    text = said("memcpy", memcpy=0.098, cpu=0.096)
    assert text.endswith("only 1.02x as fast without copies: other work hides this cost.")
    text = said("memcpy", memcpy=0.098, cpu=0.07, explained_s=0.055)
    assert (
        "The device waits 45% of each step for what is not in the trace, such as other ranks. "
        in text
    )


@pytest.mark.parametrize(
    "replay",
    [
        {"memcpy": 0.06, "cpu": 0.07},  # the bottleneck gains
        {"memcpy": 0.099, "cpu": 0.07, "replayed_s": 0.2},  # the replay is no likeness
        {"cpu": 0.07},  # the trace cannot say
    ],
)
def test_otherwise_the_verdict_stays(replay: dict[str, float]) -> None:
    assert said("memcpy", **replay) == "It is slow."
