"""The channel folder of a switching launch -> `SwitchedLaunch`: its blocks, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from torchdoctor.launch.launch import LaunchResult
from torchdoctor.launch.launch_ending import with_ending
from torchdoctor.observe.events import Events, read_channel
from torchdoctor.observe.steps import count_samples
from torchdoctor.probe import step_log
from torchdoctor.words import AppliedFix, Block, Boundary, LaunchTiming, SwitchedLaunch


def switched_launch(
    channel: Path, boundary: Boundary, result: LaunchResult, sizes: Sequence[int]
) -> SwitchedLaunch:
    """Read the blocks of the training process, and what became of each arm.

    Args:
        channel: the launch's channel folder.
        boundary: what separated iterations.
        result: how the launch ended.
        sizes: the number of fixes in each arm.

    Returns:
        `ended` is "measured" where all rounds were run. Else whole blocks still count, and
        `reason` says how it ended.
    """
    events, facts, _ = read_channel(channel)
    pids = [pid for pid, log in events.items() if len(log.at(step_log.BLOCK_BEGIN))]
    pid = min(pids, key=lambda pid: (events[pid].t_ns[0], pid), default=None)
    blocks = measured_blocks(events[pid], boundary) if pid is not None else []
    whole = pid is not None and len(events[pid].at(step_log.WINDOW_END)) > 0
    trained = [fact for fact in facts.values() if fact.fixes and not fact.is_loader_worker]
    fact = facts.get(pid) if pid is not None else next(iter(trained), None)
    ending = with_ending(LaunchTiming(ended="measured" if whole else "failed"), result, None)
    # One that came to its own end did not fail.
    failed = not whole and ending.ended != "interrupted" and result.exit_code != 0
    return SwitchedLaunch(
        ended=ending.ended,
        reason=ending.reason,
        blocks=blocks,
        arms=_by_arm(list(fact.fixes) if fact else [], sizes),
        wall_s=result.wall_s,
        failed_in=_last_on(events[pid]) if failed and pid is not None else None,
    )


def _last_on(log: Events) -> int:
    switched = log.at(step_log.SWITCH)
    return int(log.ident[switched[-1]]) if len(switched) else 0


def measured_blocks(log: Events, boundary: Boundary) -> list[Block]:
    """Whole blocks in order; one that was cut off, or holds no whole iteration, is left out."""
    begins, ends = log.at(step_log.BLOCK_BEGIN), log.at(step_log.BLOCK_END)
    marks = log.at(step_log.BOUNDARY)
    loader = boundary.ident if boundary.kind == "loader" else None
    found = []
    for begin, end in zip(begins, ends, strict=False):  # the last one may be cut off
        rows = marks[(marks > begin) & (marks < end)]
        if len(rows) < 2:
            continue
        first, last = int(rows[0]), int(rows[-1])
        steps = np.diff(log.t_ns[rows]) / 1e9
        timing = LaunchTiming(
            ended="measured",
            step_s=[float(x) for x in steps],
            samples=count_samples(log, first, last, loader),
            window_s=float(steps.sum()),
        )
        found.append(
            Block(
                arm=int(log.ident[begin]),
                round=int(log.value[begin]),
                began_s=float(log.t_ns[first]) / 1e9,
                ended_s=float(log.t_ns[last]) / 1e9,
                timing=timing,
            )
        )
    return found


def _by_arm(fixes: list[AppliedFix], sizes: Sequence[int]) -> list[list[AppliedFix]]:
    """The probe lists the fixes of all arms one after another."""
    arms, rest = [], fixes
    for size in sizes:
        arms.append(rest[:size])
        rest = rest[size:]
    return arms
