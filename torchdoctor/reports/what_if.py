"""The replays of a trace as lines of text."""

from __future__ import annotations

from torchdoctor.facts.profiled_conditions import unlike_profiled
from torchdoctor.words import Report, WhatIf
from torchdoctor.words.figures import SHARE_LABELS, clean, ratio, seconds

TITLE = "What if a cost vanished: the trace replayed, not measured"
_NO_GAIN = 1.01  # a gain below is not listed by itself


def what_if_lines(report: Report) -> list[str]:
    """A line for each branch, the largest gain first, then how true the replay is; or nothing."""
    found = report.trace.what_if if report.trace else None
    if found is None or unlike_profiled(report.steps, report.trace):
        return []  # a doubt says why: figures of other conditions would be taken for these
    gains = {branch: found.speedup(branch) for branch in found.branches}
    ranked = sorted((b for b in gains if gains[b]), key=lambda branch: -(gains[branch] or 0.0))
    listed = [branch for branch in ranked if (gains[branch] or 0.0) >= _NO_GAIN]
    without = [branch for branch in ranked if branch not in listed]
    if found.reproduced and not listed:
        return []  # nothing to gain, or a host alone: its trials say more
    lines = [_line(found, branch, gains[branch]) for branch in listed] if found.reproduced else []
    if without and found.reproduced:
        lines.append(f"under 1 % each: {'; '.join(map(_named, without))}")
        lines += _hidden_behind(report, without)
    lines.append(_fidelity(found))
    lines += [clean(doubt) for doubt in found.doubts if doubt not in report.doubts]
    return lines


def _hidden_behind(report: Report, without: list[str]) -> list[str]:
    """Why communication that is exposed may save nothing."""
    trace = report.trace
    exposed_s = trace.communication_exposed_s if trace else None
    if trace is None or not exposed_s or not trace.step_s or "communication" not in without:
        return []
    if exposed_s < (_NO_GAIN - 1) * trace.step_s:
        return []
    return [
        f"{seconds(exposed_s)} of communication are exposed and may save nothing: the host goes on "
        "meanwhile, and what follows would wait for the host instead"
    ]


def _line(found: WhatIf, branch: str, gain: float | None) -> str:
    replayed = found.branches[branch]
    assert replayed is not None
    return f"without {_named(branch)}: {seconds(replayed.step_s)} ({ratio(gain)}x)"


def _named(branch: str) -> str:
    """As the legend of the step's time names it."""
    return SHARE_LABELS.get(branch, branch)


def _fidelity(found: WhatIf) -> str:
    which = f"{found.steps} of {found.of_steps} steps" if found.steps else "the whole trace"
    apart = 100 * abs(found.replayed_s / found.measured_s - 1)
    return (
        f"replay of the trace as it is: {seconds(found.replayed_s)}, "
        f"measured {seconds(found.measured_s)}: {apart:.1f} % apart ({which})"
    )
