"""What the report of a watched run looks like."""

from collections.abc import Mapping
from typing import Any

from torchdoctor.reports import document as doc
from torchdoctor.reports.document import Block, KeyFigures, sections, sentences, table
from torchdoctor.reports.formats import program
from torchdoctor.reports.pictures import Picture
from torchdoctor.reports.templates import filled
from torchdoctor.reports.watched_facts import (
    PHASE_COLOURS,
    PHASE_NAMES,
    clause_of,
    of_fact,
    of_slow_step,
    sentence_of,
)
from torchdoctor.schema import RankTime
from torchdoctor.schema.figures import (
    clock,
    counted,
    duration,
    percent,
    ratio,
    seconds,
    speedup,
)
from torchdoctor.schema.units import several
from torchdoctor.schema.watched import OverlappingCalls, Period, WatchSummary

_MOST_ALERTS = 4
_WORTH = 1.02  # a gain below is not told
_MOST_RANKS = 32
_BEST_S = 5.0  # of a run whose best part is shorter, that part is noise
_PAUSES = ("evaluation", "checkpoint")
_PICTURES = {  # title and caption
    "steps": (
        "The time of every {unit}",
        "A {unit} takes {median_s:seconds} (median), without evaluation.",
    ),
    "time": ("Where a {unit}'s time went, over the run", "{cause}"),
    "ranks": ("Who waits for whom", "{slow_rank}"),
    "resources": (
        "Processors and memory meanwhile",
        "The machine is {host}; the clock is that of the times above.",
    ),
}
_UNMEASURED = "Nothing was measured beside the run."
_UNTRIED = (
    "No remedy is named: where calls of several threads overlap `torchdoctor run` tries none, as "
    "what one of them takes depends on the others."
)
_EVEN = "No rank is far behind the others."


def picture(key: str, drawn: dict[str, Any] | None, unit: str = "step", **values: Any) -> Picture:
    """Return a picture with its title and caption; `drawn`: None where nothing was measured."""
    title, caption = _PICTURES[key]
    title = filled(title, {"unit": unit}, {})
    if drawn is None:
        return Picture(key=key, title=title, missing=_UNMEASURED)
    caption = filled(caption, {**values, "unit": unit}, {})
    return Picture(key=key, title=title, caption=caption, drawn=drawn)


def period_row(period: Period, unit: str) -> dict[str, Any]:
    """Return a part of the run as a row of the picture of time; `unit`: what a step is called."""
    return {
        "label": f"{clock(period.t_unix_s)}, from {unit} {period.first_step:,}",
        "s": period.step_s,
        "parts": [
            {
                "key": PHASE_COLOURS[phase],
                "label": PHASE_NAMES[phase],
                "share": spent / period.step_s,
            }
            for phase, spent in period.phases_s.items()
            if phase not in _PAUSES
        ],
    }


def shown_ranks(summary: WatchSummary) -> list[RankTime]:
    """Return the ranks that are shown, the slowest first."""
    return sorted(summary.ranks, key=lambda rank: rank.wait_s or 0.0)[:_MOST_RANKS]


def answer_of(summary: WatchSummary) -> str:
    """Return what held the run up most, or how it ended without a step."""
    return sentence_of(summary.cause, summary.cwd) if summary.cause else ending_of(summary)


def ending_of(summary: WatchSummary) -> str:
    """Return how the run ended, or that it has not."""
    return " ".join(of_fact(fact, summary.unit) for fact in summary.ending)


def slow_rank_of(summary: WatchSummary) -> str:
    """Return which rank the others wait for, and why."""
    return sentence_of(summary.slow_rank) if summary.slow_rank is not None else _EVEN


def document(summary: WatchSummary) -> doc.Document:
    """Return what the report of a watched run says."""
    subject = [program(summary.command, summary.cwd), ", ".join(summary.hosts[:3])]
    subject += [f"{len(summary.ranks)} ranks" if summary.ranks else "", duration(summary.elapsed_s)]
    alert_sentences = [sentence_of(alert) for alert in summary.alerts]
    has_answer = summary.median_step_s is not None or summary.overlapping is not None
    ending = ending_of(summary) if has_answer else ""
    return doc.Document(
        title="torchdoctor watch",
        subject=" · ".join(filter(None, subject)),
        summary=answer_of(summary),
        screen=sections(
            ("", _answer(summary)),
            ("Where the time went", phase_bars(summary.phases_s)),
            ("Over time", _periods(summary)),
            ("Slowest steps", _slowest(summary)),
            ("", _costs(summary)),
            ("What happened", doc.notes(alert_sentences[:_MOST_ALERTS])),
            ("", sentences(ending, tone="soft")),
        ),
        details=_details(summary, alert_sentences),
        hint=f"details: torchdoctor report {summary.folder} --details",
    )


def _of_overlapping(summary: WatchSummary, calls: OverlappingCalls) -> list[Block]:
    """Return what is known of calls that several threads make."""
    title = f"{summary.steps:,} {several(summary.unit)}, up to {calls.most_at_once} at once"
    rows = [
        (
            "each by itself",
            f"95 % within {seconds(calls.p95_s)}, longest {seconds(calls.longest_s)}",
        ),
        ("by the clock", f"{calls.per_s:,.3g} a second"),
    ]
    return [
        doc.Sentence(answer_of(summary), "strong"),
        KeyFigures(title, f"median {seconds(calls.median_s)}", rows),
        doc.Sentence(_UNTRIED),
    ]


def _answer(summary: WatchSummary) -> list[Block]:
    if summary.overlapping is not None:
        return _of_overlapping(summary, summary.overlapping)
    if summary.median_step_s is None or summary.best_step_s is None:
        return [doc.Sentence(ending_of(summary), "strong")]
    blocks: list[Block] = [doc.Sentence(answer_of(summary), "strong")]
    units = several(summary.unit)
    steps = f"{summary.steps:,}"
    median = f"median {seconds(summary.median_step_s)}"
    title = f"{steps} {units}"
    figure = median
    rows = []
    if summary.best_of_s >= _BEST_S:
        hour = "hour" if summary.best_of_s >= 3600 else duration(summary.best_of_s)
        title = f"At the pace of its best {hour}"
        figure = "the run was as fast all the time"
        at_best_s = summary.best_step_s * summary.steps
        if (gain := summary.training_s / max(at_best_s, 1e-9)) >= _WORTH:
            whole = f"{duration(at_best_s)}, not {duration(summary.training_s)}"
            figure = f"all {units} take {whole} ({ratio(gain)}x)"
        rows.append((units, f"{steps}, {median}"))
    if summary.drift is not None:
        of_first = f"{ratio(summary.drift)}x a {summary.unit} of the first quarter"
        why = f": {clause_of(summary.drift_cause, summary.unit)}" if summary.drift_cause else ""
        rows.append(("last quarter", f"{of_first}{why}"))
    blocks.append(KeyFigures(title, figure, rows))
    if summary.trying:
        most_gain = ""
        most = summary.at_most
        if most is not None:
            most_gain = f" (what works on {most.works_on} gains {ratio(most.speedup)}x at most)"
        blocks += [doc.Sentence(f"Try remedies{most_gain}:"), doc.Code(summary.trying, "shell")]
    return blocks


def phase_bars(phases: Mapping[str, float]) -> list[Block]:
    """Return the phases as parts of one bar, the largest first; `phases`: seconds by name."""
    whole = max(sum(phases.values()), 1e-9)
    bars = [
        doc.Bar(PHASE_COLOURS[name], PHASE_NAMES[name], spent / whole, percent(spent / whole))
        for name, spent in sorted(phases.items(), key=lambda part: -part[1])
        if spent > 0.0005 * whole
    ]
    return [doc.Bars(bars)] if bars else []


def _periods(summary: WatchSummary) -> list[Block]:
    names = sorted(
        PHASE_NAMES,
        key=lambda phase_name: -max((p.phases_s[phase_name] for p in summary.periods), default=0),
    )
    shown = [name for name in names if name not in _PAUSES][:3]
    rows = [
        [
            f"{period.first_step:,}-{period.last_step:,}",
            clock(period.t_unix_s),
            seconds(period.step_s),
            f"{period.samples_per_s:,.0f}" if period.samples_per_s else "-",
            *(seconds(period.phases_s[name]) for name in shown),
        ]
        for period in summary.periods
    ]
    unit = summary.unit
    columns = [several(unit), "from", f"a {unit}", "samples/s"]
    return table([*columns, *(PHASE_NAMES[name] for name in shown)], rows)


def _slowest(summary: WatchSummary) -> list[Block]:
    rows = [
        [f"{slow.step:,}", clock(slow.t_unix_s), seconds(slow.step_s), of_slow_step(slow)]
        for slow in summary.slowest
    ]
    return table([summary.unit, "at", "took", "mostly"], rows)


def _costs(summary: WatchSummary) -> list[Block]:
    """Return what evaluation, checkpoints and the slowest rank cost."""
    whole = max(sum(summary.phases_s.values()), 1e-9)
    lines = []
    for name, count in (("evaluation", summary.evaluations), ("checkpoint", summary.checkpoints)):
        if count:
            spent_s = summary.phases_s[name]
            each = f"{counted(count, name)} of {seconds(spent_s / count)} on average"
            spent = duration(spent_s) if spent_s >= 10 else seconds(spent_s)
            lines.append(f"{each}, {spent} in all ({percent(spent_s / whole)}).")
    if summary.own_cost is not None:
        cost = f"{speedup(summary.own_cost)} the time of one without"
        hooked = f"A {summary.unit} with torchdoctor's hooks"
        lines.append(f"{hooked} takes {cost}, measured in this run.")
    if summary.ranks and summary.slow_rank is None:
        waiting = percent(summary.rank_waiting)
        lines.append(
            f"The ranks are even: they wait {waiting} of each {summary.unit} for the slowest."
        )
    elif summary.slow_rank is not None and summary.slow_rank != summary.cause:
        lines.append(slow_rank_of(summary))
    return sentences(*lines)


def _details(summary: WatchSummary, alert_sentences: list[str]) -> list[doc.Section]:
    ranks = [
        [
            str(rank.rank),
            seconds(rank.step_s),
            seconds(rank.kernel_s),
            seconds(rank.data_loader_s),
            seconds(rank.wait_s),
            percent(rank.last_share),
            f"{rank.clock_offset_s or 0.0:+.3f} s",
        ]
        for rank in shown_ranks(summary)
    ]
    columns = ["rank", summary.unit, "computes", "data", "waits for others", "last", "clock"]
    step = " ".join(of_fact(evidence, summary.unit, summary.cwd) for evidence in summary.step)
    about = [program(summary.command, ""), summary.folder, step]
    return sections(
        ("Ranks, the slowest first", table(columns, ranks)),
        ("All that happened", doc.notes(alert_sentences)),
        ("Conditions", doc.notes([text for text in about if text])),
    )
