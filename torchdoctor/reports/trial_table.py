"""The first screen's table of trials: the most valuable first, and how many are not in it."""

from torchdoctor.queries.outcomes import value_of
from torchdoctor.reports.document import Block, Row, sentences, table
from torchdoctor.reports.screen_room import names_of
from torchdoctor.reports.trial_rows import (
    LOOKS_FASTER,
    figures_of,
    not_tried,
    training,
    verdict_of,
)
from torchdoctor.reports.undecided import ends_without_gain
from torchdoctor.reports.vocabulary import compared
from torchdoctor.schema import Report, Trial, set_of
from torchdoctor.schema.figures import ratio, says_something, speedup


def blocks(report: Report, most: int) -> list[Block]:
    """Return at most so many rows: the recommended set, its fixes alone, and the other trials."""
    together = report.recommendation
    rows = _row_of_recommended(report)
    of_recommended = set_of(together.fixes) if rows else None
    trials = [trial for trial in report.trials if trial.speedup and trial.fixes != of_recommended]
    members = [fix.as_set for fix in together.fixes]
    ranked = [(trial.fixes in members, value_of(trial), trial) for trial in trials]
    ranked.sort(key=lambda row: row[:2], reverse=True)
    names = names_of([trial.fixes for _, _, trial in ranked])
    for name, (is_member, _, trial) in zip(names, ranked, strict=True):
        rows.append(_row(name, trial, is_member, report))
    columns = ["tried", "speed-up (95 %)", compared(report), "pairs", "result"]
    left_out = max(len(rows) - most, 0)
    return [*table(columns, rows[:most]), *sentences(_counts(report, left_out), tone="soft")]


def _row_of_recommended(report: Report) -> list[Row]:
    """Return the row of several recommended fixes measured together; a single one has its own."""
    together = report.recommendation
    if len(together.fixes) < 2 or together.speedup is None:
        return []
    figures = speedup(together.speedup)
    pairs = str(together.pairs or "-")
    cells = ["all recommended together", figures, training(together.numerics), pairs, ""]
    return [Row(cells, "good", together.speedup)]


def _row(name: str, trial: Trial, is_recommended: bool, report: Report) -> Row:
    interval = trial.speedup if trial.speedup and says_something(trial.speedup) else None
    verdict = "recommended" if is_recommended else verdict_of(trial)
    is_bounded = ends_without_gain(report) and trial.upper_bound
    if is_bounded and interval is not None and verdict != "slower":
        verdict += f", {ratio(max(trial.upper_bound or 1.0, interval.high))}x at most"
    if trial.numerics == "changed" and verdict in ("faster", LOOKS_FASTER):
        verdict = f"changes {compared(report)}"
    says_results = trial.numerics != "not-comparable" or verdict == "faster"
    results = training(trial.numerics) if says_results else ""
    cells = [name, figures_of(trial), results, str(trial.pairs or "-"), verdict]
    return Row(cells, "good" if is_recommended else "", interval)


def _counts(report: Report, left_out: int) -> str:
    """Return how many trials are not in the table, and why; each reason is in the details."""
    untried = [trial for trial in report.trials if not_tried(trial)]
    unlikely = sum(trial.not_worth_its_time for trial in untried)
    failed = sum(trial.verdict == "failed" for trial in report.trials)
    refused = {trial.fixes.ids for trial in report.trials if trial.verdict == "refused"}
    counts = [
        (unlikely, "not worth the time"),
        (len(untried) - unlikely, "did not fit into the time (a longer --budget)"),
        (failed, "failed"),
        (len(refused), "do not apply"),
    ]
    texts = []
    if left_out:
        texts.append(f"{left_out} more were measured.")
    not_measured = ", ".join(f"{number} {words}" for number, words in counts if number)
    if not_measured:
        texts.append(f"Not measured: {not_measured} (reasons: --details).")
    return " ".join(texts)
