"""Ranks and operators of a trace as lines of text."""

from __future__ import annotations

from torchdoctor.records import Operator, Report
from torchdoctor.reports.figures import clean, percent, seconds

RANKS = "The ranks, per step"
OPERATORS = "The most expensive operators, per step"
OPERATORS_OF_ALL = "The most expensive operators, in the whole trace"
_MOST, _NAME = 5, 40


def rank_lines(report: Report) -> list[str]:
    """A line for each rank: its step, and what of it is its own, collectives and data."""
    lines = []
    for one in report.ranks:
        exposed = one.communication_exposed_s or 0.0
        parts = [f"own {seconds(one.step_s - exposed)}", f"waits for others {seconds(exposed)}"]
        if one.data_loader_s >= 0.01 * one.step_s:
            parts.append(f"waits for data {seconds(one.data_loader_s)}")
        lines.append(f"rank {one.rank}: step {seconds(one.step_s)} ({', '.join(parts)})")
    return lines


def operators_title(report: Report) -> str:
    """Of each step, or of the whole trace where its steps are unknown."""
    known = report.trace is None or report.trace.steps > 0
    return OPERATORS if known else OPERATORS_OF_ALL


def operator_lines(report: Report) -> list[str]:
    """The operators that take most of the device, or without one of the host."""
    trace = report.trace
    if trace is None or not trace.operators or not trace.step_s:
        return []

    def cost_s(one: Operator) -> float:
        return (one.device_s or 0.0) if trace.has_device else one.self_s

    ranked = sorted(trace.operators, key=cost_s, reverse=True)[:_MOST]
    return [
        f"{clean(one.name)[:_NAME]}: {seconds(cost_s(one))} "
        f"({percent(cost_s(one) / trace.step_s)}), {one.calls_per_step:.3g} calls"
        for one in ranked
        if cost_s(one) > 0
    ]
