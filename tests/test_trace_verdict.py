"""What the verdict on a trace says of a bottleneck that hides behind something else."""

from __future__ import annotations

import pytest
from in_words import in_words

from torchdoctor.runs.trace_verdict import with_replay
from torchdoctor.schema import Diagnosis, ReplayedGain, TraceStatistics, Verdict
from torchdoctor.schema.traced import BranchReplay, WhatIf


def replayed(
    bottleneck: str, replayed_s: float = 0.1, explained_s: float = 0.1, **without_s: float
) -> Diagnosis:
    """Return the diagnosis of a bottleneck, by a replay whose steps take these times without."""
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
    verdict = Verdict(kind=bottleneck, share=0.7)
    return with_replay(Diagnosis(bottleneck=bottleneck, verdict=verdict), trace)


def denied(bottleneck: str, **without_s: float) -> ReplayedGain:
    """Return what the replay says against a bottleneck."""
    replay = replayed(bottleneck, **without_s).verdict.replay
    assert replay is not None
    return replay


def is_called_the_limit(diagnosis: Diagnosis) -> bool:
    return "is the limit" in in_words(diagnosis).sentence


def test_the_bottleneck_is_what_removing_gains_most() -> None:
    """ "The GPU is the limit" stood beside 1.03x without its kernels."""
    moved = replayed("gpu", gpu=0.097, cpu=0.07)
    told = in_words(moved).sentence
    assert moved.bottleneck == "cpu" and not is_called_the_limit(moved)
    assert "1.43x" in told and "1.03x" in told, "both, so that it can be judged"
    assert replayed("memcpy", memcpy=0.09, gpu=0.06).bottleneck == "gpu"
    stays = replayed("gpu", gpu=0.05, cpu=0.07)
    assert (stays.bottleneck, stays.verdict.replay) == ("gpu", None)


def test_the_profiler_makes_the_host_slow_so_only_far_more_moves_the_verdict_there() -> None:
    shown = replayed("data_loader", data_loader=0.08, cpu=0.05)
    assert shown.bottleneck == "data_loader"
    gains = shown.verdict.replay
    assert gains is not None and not gains.hidden and not gains.is_limit
    assert (gains.speedup, gains.best_speedup) == (pytest.approx(1.25), pytest.approx(2.0))
    assert replayed("data_loader", data_loader=0.09, cpu=0.05).bottleneck == "cpu"


def test_what_the_replay_denies_is_not_called_the_limit() -> None:
    """ "It is the limit. ... hides behind something else" were two sentences of one verdict."""
    hidden = replayed("gpu", gpu=0.099, cpu=0.096)
    assert "70%" in in_words(hidden).sentence and not is_called_the_limit(hidden)
    confirmed = replayed("gpu", gpu=0.05, cpu=0.07)
    assert confirmed.verdict.replay is None
    assert "70%" in in_words(confirmed).sentence and is_called_the_limit(confirmed)
    gains = denied("gpu", gpu=0.099, cpu=0.096)
    assert (gains.branch, gains.speedup) == ("gpu", pytest.approx(1.0101, abs=1e-4))
    # Driver calls are the host's: without them, three times as fast is a gain of its branch.
    assert replayed("cpu", cpu=0.099, runtime=0.033).verdict.replay is None


def test_a_cost_that_gains_nothing_says_why_also_where_nothing_else_gains() -> None:
    """ "Copies hold up 41 %", and 1.02x to gain: no sentence told how both could be true."""
    assert denied("memcpy", memcpy=0.098, cpu=0.096).best is None
    gains = denied("memcpy", memcpy=0.098, cpu=0.07, explained_s=0.055)
    assert gains.unseen_share == pytest.approx(0.45)
    told = in_words(replayed("memcpy", memcpy=0.098, cpu=0.07, explained_s=0.055)).sentence
    assert "45%" in told.split(". ")[0], "what the trace lacks is said first"


@pytest.mark.parametrize(
    "replay",
    [
        {"memcpy": 0.06, "cpu": 0.07},  # the bottleneck gains
        {"memcpy": 0.099, "cpu": 0.07, "replayed_s": 0.2},  # the replay is no likeness
        {"cpu": 0.07},  # the trace cannot say
    ],
)
def test_otherwise_the_verdict_stays(replay: dict[str, float]) -> None:
    assert replayed("memcpy", **replay).verdict == Verdict(kind="memcpy", share=0.7)
