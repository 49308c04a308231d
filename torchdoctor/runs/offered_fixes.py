"""Fixes beside the recommended ones that are worth showing as code, and why each is shown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchdoctor.advice.wording import wording
from torchdoctor.edits import Edit, LineEdit
from torchdoctor.edits.diff import also_changed, folder_of, instead, unified_diff
from torchdoctor.queries.lookup import place
from torchdoctor.queries.outcomes import most_promising, value_of
from torchdoctor.schema import Diagnosis, Location, RecommendedFix, Recording, Trial
from torchdoctor.schema.specs import FixSpec
from torchdoctor.trials.outcome import SAME_TRAINING

_MOST_UNDECIDED = 2


def offered_fixes(
    diagnosis: Diagnosis,
    rows: Sequence[Trial],
    recommended: Sequence[RecommendedFix],
    recording: Recording,
    fixes: Mapping[str, FixSpec],
) -> list[RecommendedFix]:
    """Return what else is worth doing beside the recommended set; `standing` says why."""
    trials = _Trials(diagnosis, sorted(rows, key=value_of, reverse=True), recording, fixes)
    offered = trials.confirmed(recommended)
    if not recommended and not offered:
        offered = trials.undecided()
    offered += trials.neither_measured_nor_refused()
    return [as_code(fix, recording, fixes) for fix in offered]


@dataclass(frozen=True)
class _Trials:
    """The trials of a run, and what they are judged by."""

    diagnosis: Diagnosis
    rows: Sequence[Trial]
    recording: Recording
    fixes: Mapping[str, FixSpec]

    def confirmed(self, recommended: Sequence[RecommendedFix]) -> list[RecommendedFix]:
        """Return fixes that are faster by themselves, train the same and are not in the set."""
        taken = {fix.fix for fix in recommended}
        for member in recommended:
            if member.fix in self.fixes:
                taken |= set(self.fixes[member.fix].includes(self.recording))
        confirmed: list[RecommendedFix] = []
        for row in sorted(self.rows, key=lambda row: -row.speedup.low if row.speedup else 0.0):
            proven = row.verdict == "faster" and row.speedup is not None and row.speedup.low > 1
            fix = row.fixes.only
            if not proven or row.numerics not in SAME_TRAINING or fix is None or fix in taken:
                continue
            if fix in self.fixes:  # not of another version
                taken.add(fix)
                confirmed.append(_offer(fix, row.fixes[fix], "confirmed"))
        return confirmed

    def undecided(self) -> list[RecommendedFix]:
        """Return at most two fixes that were not decided: first those that the report names."""
        best = most_promising(self.rows)
        named = self._shown(best) if best is not None else []
        if len(named) > 1:
            return named
        beside = [row for row in self.rows if not named or named[0].fix not in row.fixes]
        return [*named, *self._for_findings(beside)][:_MOST_UNDECIDED]

    def _shown(self, row: Trial, treating: str | None = None) -> list[RecommendedFix]:
        """Return the fixes of an open trial that may be shown; unlaunched, `treating` a finding."""
        parts = row.fixes
        if not parts.keys() <= self.fixes.keys() or self._may_change_training(row):
            return []
        standing = "undecided" if len(parts) == 1 else "together"
        if row.speedup is None and treating is not None:
            # Company that nothing calls for by itself is no advice before a run has tried it.
            parts = parts.limited_to(fix for fix in parts if self._called_for(self.fixes[fix]))
            if treating not in parts or not all(self.fixes[fix].offered_untried for fix in parts):
                return []
            standing = "untried"
        return [_offer(fix, settings, standing) for fix, settings in parts.items()]

    def _may_change_training(self, row: Trial) -> bool:
        """Return True if a fix is suspect and this trial was not seen to train the same."""
        if row.speedup is not None and row.numerics in SAME_TRAINING:
            return False
        # Another setting of what changed training is suspect too.
        changed = {row.fixes.only for row in self.rows if row.numerics == "changed"}
        return any(
            fix in changed or self.fixes[fix].doubt(self.recording) is not None for fix in row.fixes
        )

    def _for_findings(self, rows: Sequence[Trial]) -> list[RecommendedFix]:
        """Return the open trials' fixes of the first finding that has any, measured ones first."""
        unproven = ("unclear", "looks-faster")
        open_rows = [row for row in rows if row.verdict in unproven and self._may_help(row)]
        for finding in self.diagnosis.findings:
            pairs = [(row, fix) for fix in finding.fixes for row in open_rows if fix in row.fixes]
            pairs.sort(key=lambda pair: -pair[0].speedup.low if pair[0].speedup else math.inf)
            offered: dict[str, RecommendedFix] = {}
            for row, fix in pairs:
                for part in self._shown(row, fix):
                    offered.setdefault(part.fix, part)
            if offered:
                return list(offered.values())[:_MOST_UNDECIDED]
        return []

    def _may_help(self, row: Trial) -> bool:
        """Return False for a trial that changes training or looks slower, in any setting."""
        if row.numerics == "changed":
            return False
        if row.speedup is not None:
            return row.speedup.estimate > 1
        return row.pairs == 0 and not any(
            fix in row.fixes and settings != row.fixes[fix]
            for other in self._slower()
            if (fix := other.fixes.only) is not None
            for settings in other.fixes.values()
        )

    def _slower(self) -> list[Trial]:
        """Return the trials that made the program slower, proven or not."""
        return [row for row in self.rows if row.speedup is not None and row.speedup.estimate < 1]

    def neither_measured_nor_refused(self) -> list[RecommendedFix]:
        """Return fixes for the findings that were neither measured nor refused."""
        # For what the user left out by --fixes or --skip, nothing was asked either.
        fixes_of_rows = {fix for row in self.rows for fix in row.fixes}
        # What includes a fix that made it slower is no better advice than that.
        slower = {row.fixes.only for row in self._slower()}
        offered = []
        for ident in dict.fromkeys(
            fix for finding in self.diagnosis.findings for fix in finding.fixes
        ):
            fix = self.fixes.get(ident)
            if (
                fix is None
                or ident in fixes_of_rows
                or not fix.offered_untried
                or fix.refusal(self.recording)
            ):
                continue
            if fix.doubt(self.recording) is not None or not self._called_for(fix):
                continue
            if slower.intersection(fix.includes(self.recording)):
                continue
            touched = fix.touches(self.recording)
            if touched is not None and not touched:
                continue  # nothing that it works on was recorded
            settings = fix.settings(self.recording)
            if settings or fix.offered_as_code(self.recording):
                offered.append(_offer(ident, next(iter(settings), {}), "offered"))
        return offered

    def _called_for(self, fix: FixSpec) -> bool:
        """Return True if the findings are ground enough to offer a fix that no run has tried."""
        checks = {finding.check for finding in self.diagnosis.findings}
        return not fix.untried_needs or not checks.isdisjoint(fix.untried_needs)


def _offer(fix: str, settings: dict[str, Any], standing: str) -> RecommendedFix:
    return RecommendedFix(fix=fix, settings=settings, standing=standing)


def as_code(
    fix: RecommendedFix, recording: Recording, fixes: Mapping[str, FixSpec]
) -> RecommendedFix:
    """Return the fix with its edit and its instruction, as this program needs them."""
    spec = fixes.get(fix.fix)
    if spec is None:
        return fix
    words = wording(spec, fix.settings, recording)
    text = words.instruction or ""
    edits = words.edits
    placed = (
        Location(file=edit.file, line=edit.line) for edit in edits if isinstance(edit, LineEdit)
    )
    location = words.location or next(placed, None)
    folder = folder_of(edits, recording.workload.cwd)
    diff = unified_diff(edits, folder) if edits else None
    if diff is None:
        text = "\n".join([text, *instead(edits)])
    return replace(
        fix,
        instruction=text,
        edit=diff,
        location=location,
        folder=folder if diff is not None and folder != recording.workload.cwd else None,
        also_changes=_also_changes(edits, recording) if diff is not None else [],
    )


def _also_changes(edits: Sequence[Edit], recording: Recording) -> list[str]:
    """Return what edits of an option's default change beside the call that they are for."""
    where: dict[str, list[str]] = {}
    for name, file, line in also_changed(edits):
        where.setdefault(name, []).append(place(recording, Location(file=file, line=line), file))
    return [
        f"The default of {name} is also used at {', '.join(places)}, which changes too."
        for name, places in where.items()
    ]


def advice(
    rows: Sequence[Trial],
    recording: Recording,
    fixes: Mapping[str, FixSpec],
) -> list[RecommendedFix]:
    """Return advice on training itself: not about speed, and only where it was not refused."""
    fixes_of_rows = {row.fixes.only for row in rows}
    offered = []
    for ident, spec in fixes.items():
        if spec.training is None or ident in fixes_of_rows or spec.refusal(recording):
            continue
        fix = RecommendedFix(
            fix=ident,
            aim="training",
            standing="offered",
            warning=spec.training.costs,
        )
        offered.append(as_code(fix, recording, fixes))
    return offered
