"""Where a step's time goes, and what the step would gain without each part at most."""

from dataclasses import replace

from torchdoctor.queries.bounds import LARGEST_BOUND
from torchdoctor.queries.lookup import exposed_python, unlike_profiled
from torchdoctor.reports.document import Bar
from torchdoctor.reports.vocabulary import step_of
from torchdoctor.schema import Report, Shares, TriedCeiling, figures
from torchdoctor.schema.figures import certain_speedup
from torchdoctor.schema.traced import MATTERS

BOUNDS_TITLE = "Upper bounds: the program run without a cost"
REPLAY_TITLE = "Upper bounds: the trace replayed without a cost, not measured"
_HIDDEN = "hidden behind other work, so not the bottleneck"
PHASE_COLOURS = ("data_loader", "memcpy", "gpu", "runtime", "cpu", "other")  # those of branches
_NO_GAIN = 1.01  # a gain below is not listed by itself
_MOST_BOUNDS = 3


def time_bars(report: Report) -> list[Bar]:
    """Return the parts of a step, the largest first: by the trace, else by phase; no zeros."""
    shares = report.baseline.shares
    parts = _phases(report)
    if shares != Shares():
        # Python between operators is CPU time to the tree.
        python = exposed_python(report.trace, shares)
        if python and shares.other is not None and shares.cpu is not None:
            other = max(shares.other - python, 0.0)
            shares = replace(shares, cpu=shares.cpu + python, other=other)
        parts = [(key, label, getattr(shares, key)) for key, label in figures.SHARE_LABELS.items()]
    between = report.steps is not None and 2 * report.steps.between_epochs_s > report.steps.other_s
    ends = {"other": ", mostly between epochs"} if between else {}
    shown = [(key, label + ends.get(label, ""), share) for key, label, share in parts if share]
    return [
        Bar(*part, figures.percent(part[-1])) for part in sorted(shown, key=lambda part: -part[-1])
    ]


def phase_line(report: Report) -> str:
    """Return the step's time by phase in one line; empty where the bars already say it."""
    parts = [f"{label} {figures.percent(share)}" for _, label, share in _phases(report) if share]
    if not parts or report.baseline.shares == Shares():
        return ""
    return f"By phase: {', '.join(parts)}."


def _phases(report: Report) -> list[tuple[str, str, float | None]]:
    steps = report.steps
    if steps is None or steps.mean_s <= 0:
        return []
    return [
        (colour, label, getattr(steps, f"{phase}_s") / steps.mean_s)
        for colour, (phase, label) in zip(PHASE_COLOURS, figures.PHASE_LABELS.items(), strict=True)
    ]


def upper_bounds(report: Report) -> str:
    """Return the largest upper bounds in one line: of experiments, else of a replay; or ""."""
    tried = [
        (
            ceiling.speedup.low,
            f"without {figures.clean(ceiling.removes)} {certain_speedup(ceiling.speedup)}",
        )
        for ceiling in report.ceiling_trials
        if ceiling.whole and ceiling.decided and ceiling.speedup is not None
    ]
    measured = report.recommendation.speedup
    reached = measured.estimate if measured is not None else 0.0
    replayed = [
        (gain, f"without {figures.SHARE_LABELS.get(branch, branch)} {_replayed_bound(gain)}")
        for branch, gain in replayed_gains(report).items()
        if gain >= max(MATTERS, reached)  # a model that a measurement refutes says nothing
    ]
    texts = [text for _, text in sorted(tried or replayed, reverse=True)[:_MOST_BOUNDS]]
    how = "experiment" if tried else "replay of the trace"
    return f"upper bounds by {how}: {', '.join(texts)}" if texts else ""


def _replayed_bound(gain: float) -> str:
    """Return a speed-up by replay; where hardly anything is left, no figure says how much."""
    return f"{figures.ratio(gain)}x" if gain < LARGEST_BOUND else "hardly anything is left"


def bound_lines(report: Report) -> list[str]:
    """Return a line for each cost that the program was run without; none without an experiment."""
    tried = any(ceiling.verdict != "not-tried" for ceiling in report.ceiling_trials)
    return (
        [_bound_line(ceiling, step_of(report)) for ceiling in report.ceiling_trials]
        if tried
        else []
    )


def _bound_line(ceiling: TriedCeiling, step: str) -> str:
    removed = f"without {figures.clean(ceiling.removes)}"
    share = ceiling.share
    reason = figures.clean(ceiling.reason or "")
    if ceiling.speedup is None:
        return f"{removed}: {ceiling.verdict.replace('-', ' ')}. {reason}".strip()
    if share is not None:
        removed += f" ({figures.percent(share)} of the {step})"
    if ceiling.verdict == "slower":
        return f"{removed}: the {step} took longer, so this says nothing"
    if not ceiling.decided:
        return f"{removed}: not decided. {reason}".strip()
    at_most = " at most" * figures.says_something(ceiling.speedup)
    line = f"{removed}: {certain_speedup(ceiling.speedup)}{at_most}"
    if ceiling.verdict in ("hidden", "nothing"):
        return f"{line}: {_HIDDEN if ceiling.verdict == 'hidden' else 'not the bottleneck'}"
    if share is not None and 0 < share < 1:
        line += f"; by its share alone {figures.ratio(1 / (1 - share))}x"
    return line


def replayed_gains(report: Report) -> dict[str, float]:
    """Return the speed-up without each branch by a believed replay, the largest first."""
    replay = report.trace.what_if if report.trace else None
    if replay is None or not replay.reproduced or unlike_profiled(report.steps, report.trace):
        return {}
    gains = {branch: replay.speedup(branch) or 0.0 for branch in replay.branches}
    largest_first = sorted(gains.items(), key=lambda branch_gain: -branch_gain[1])
    return {branch: gain for branch, gain in largest_first if gain}


def replay_lines(report: Report) -> list[str]:
    """Return a line for each branch, the largest gain first, then how true the replay is."""
    replay = report.trace.what_if if report.trace else None
    if replay is None or unlike_profiled(report.steps, report.trace):
        return []  # a doubt says why: figures of other conditions would be taken for these
    lines = [
        f"without {figures.SHARE_LABELS.get(branch, branch)}: "
        f"{figures.seconds(replayed.step_s)} ({figures.ratio(gain)}x)"
        for branch, gain in replayed_gains(report).items()
        if gain >= _NO_GAIN and (replayed := replay.branches[branch]) is not None
    ]
    if replay.reproduced and not lines:
        return []  # nothing to gain, or a host alone: its trials say more
    steps = f"{replay.steps} of {replay.of_steps} steps" if replay.steps else "the whole trace"
    apart = 100 * abs(replay.replayed_s / replay.measured_s - 1)
    lines.append(
        f"replay of the trace as it is: {figures.seconds(replay.replayed_s)}, "
        f"measured {figures.seconds(replay.measured_s)}: {apart:.1f} % apart ({steps})"
    )
    sentences = [doubt.sentence for doubt in replay.doubts]
    return lines + [figures.clean(text) for text in sentences if text not in report.doubts]
