"""What was not tried, failed or was refused, and why: each reason once."""

from __future__ import annotations

from dataclasses import dataclass

from torchdoctor.words import Report, Trial
from torchdoctor.words.figures import clean, fix_with_settings

_TOLD = 6  # refusals that are told one by one in any case


@dataclass(frozen=True, kw_only=True)
class NotMeasured:
    """Fixes that were not tried, refused, or failed, for one and the same reason."""

    verdict: str  # "not tried" | "refused" | "failed"
    reason: str
    fixes: list[str]


def not_measured(report: Report) -> list[NotMeasured]:
    """Every trial without a measurement and its reason; the same reason is said once."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for verdict in ("not tried", "failed", "refused"):
        for trial in report.trials:
            if ("not tried" if not_tried(trial) else trial.verdict) == verdict:
                text = (trial.reason or "no reason was given").removeprefix("not tried: ")
                reason = sentence(text[:1].upper() + text[1:])
                name = fix_with_settings(trial.fix, trial.settings)
                names = by_reason.setdefault((verdict, reason), [])
                if name not in names:
                    names.append(name)
    return _with_clauses_said_once(
        [
            NotMeasured(verdict=verdict, reason=reason, fixes=names)
            for (verdict, reason), names in by_reason.items()
        ]
    )


def told_and_named(report: Report) -> tuple[list[NotMeasured], list[str]]:
    """For a small place: rows whose reason is told, and fixes that are only named.

    Where many were refused, those that treat nothing of what was found are named; their reasons
    stand in the report's other forms.
    """
    rows = not_measured(report)
    refused = [row for row in rows if row.verdict == "refused"]
    if len(refused) <= _TOLD:
        return rows, []
    treating = {fix for finding in report.diagnosis.findings for fix in finding.fixes}
    quiet = {
        trial.fix
        for trial in report.trials
        if trial.verdict == "refused" and not treating & set(trial.fix.split(" + "))
    }
    named = [row for row in refused if set(row.fixes) <= quiet]
    told = [row for row in rows if row not in named]
    return told, sorted(fix for row in named for fix in row.fixes)


def _with_clauses_said_once(rows: list[NotMeasured]) -> list[NotMeasured]:
    """Refusals that begin alike ("The training loop uses no torch DataLoader, ...") as one."""
    alike: dict[str, list[NotMeasured]] = {}
    for row in rows:
        clause = row.reason.partition(", ")[0] if row.verdict == "refused" else row.reason
        alike.setdefault(f"{row.verdict} {clause}", []).append(row)
    return [
        same[0]
        if len(same) == 1
        else NotMeasured(
            verdict=same[0].verdict,
            reason=sentence(same[0].reason.partition(", ")[0]),
            fixes=[name for row in same for name in row.fixes],
        )
        for same in alike.values()
    ]


def not_tried(trial: Trial) -> bool:
    """Whether time ran out before its first launch."""
    return trial.verdict == "unclear" and trial.pairs == 0 and trial.speedup is None


def sentence(text: str) -> str:
    """Text of a fix's own, ended like a sentence."""
    text = clean(text.strip())
    return text if text.endswith((".", "!", "?")) else f"{text}."
