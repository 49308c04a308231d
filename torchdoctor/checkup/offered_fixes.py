"""Fixes beside the recommended ones that are worth showing as code, and why each is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchdoctor.advice.wording import wording
from torchdoctor.edits import Edit
from torchdoctor.edits.diff import also_changed, folder_of, instead, unified_diff
from torchdoctor.facts.lookup import place
from torchdoctor.facts.undecided import leader
from torchdoctor.trials.outcome import SAME_TRAINING
from torchdoctor.words import Diagnosis, Location, RecommendedFix, Recording, TrainingTrial, Trial
from torchdoctor.words.specs import FixSpec

_MOST_UNDECIDED = 2


def offered_fixes(
    diagnosis: Diagnosis,
    rows: Sequence[Trial],
    recommended: Sequence[RecommendedFix],
    recording: Recording,
    fixes: Mapping[str, FixSpec],
) -> list[RecommendedFix]:
    """What else is worth doing, `standing` says why.

    Args:
        diagnosis: its findings, the most severe first.
        rows: all trials.
        recommended: the fixes of the recommended set, which are left out.
        recording: says where what they change is written.
        fixes: modules by id.
    """
    found = _confirmed(rows, recommended, recording, fixes)
    if not recommended and not found:
        found = _undecided(diagnosis, rows, recording, fixes)
    offered = _neither_measured_nor_refused(diagnosis, rows, recording, fixes)
    return [as_code(one, recording, fixes) for one in found] + offered


def _confirmed(
    rows: Sequence[Trial],
    recommended: Sequence[RecommendedFix],
    recording: Recording,
    fixes: Mapping[str, FixSpec],
) -> list[RecommendedFix]:
    """Fixes that are faster by themselves and train the same, but did not come into the set."""
    taken = {one.fix for one in recommended}
    for one in recommended:
        if one.fix in fixes:
            taken |= set(fixes[one.fix].includes(recording))
    found: list[RecommendedFix] = []
    for row in sorted(rows, key=lambda row: -row.speedup.low if row.speedup else 0.0):
        surely = row.verdict == "faster" and row.speedup is not None and row.speedup.low > 1
        if not surely or row.numerics in ("changed", "not-comparable") or row.fix in taken:
            continue
        if row.fix in fixes:  # not one of the stacks
            taken.add(row.fix)
            found.append(RecommendedFix(fix=row.fix, settings=row.settings, standing="confirmed"))
    return found


def _undecided(
    diagnosis: Diagnosis, rows: Sequence[Trial], recording: Recording, fixes: Mapping[str, FixSpec]
) -> list[RecommendedFix]:
    """Of the first finding that has any: fixes that were not decided, two at most.

    Those that were measured come first, the surest before all. Where the verdict names a trial, it
    is that one's code first, whatever other settings of its fixes did.
    """
    changed = _changed_by(rows)
    if named := _named(leader(rows), changed, recording, fixes):
        if len(named) > 1:
            return named
        beside = [row for row in rows if named[0].fix not in row.fix.split(" + ")]
        others = _of_findings(diagnosis, beside, changed, recording, fixes)
        return [*named, *others][:_MOST_UNDECIDED]
    return _of_findings(diagnosis, rows, changed, recording, fixes)


def _changed_by(rows: Sequence[Trial]) -> set[str]:
    """Fixes that changed training in one of their settings: the others are suspect too."""
    return {row.fix for row in rows if row.numerics == "changed" and " + " not in row.fix}


def _suspect(
    row: Trial,
    parts: Sequence[str],
    changed: set[str],
    recording: Recording,
    fixes: Mapping[str, FixSpec],
) -> bool:
    """Whether one of the fixes may change training, and this row was not seen to train the same."""
    if row.speedup is not None and row.numerics in SAME_TRAINING:
        return False
    return any(part in changed or _doubted(fixes[part], recording) for part in parts)


def _named(
    row: Trial | None, changed: set[str], recording: Recording, fixes: Mapping[str, FixSpec]
) -> list[RecommendedFix]:
    """The fixes of the trial that the verdict names; none where one of them is doubted."""
    if row is None:
        return []
    parts = row.fix.split(" + ")
    if not set(parts) <= set(fixes):
        return []
    if _suspect(row, parts, changed, recording, fixes):
        return []
    if len(parts) == 1:
        return [RecommendedFix(fix=row.fix, settings=row.settings, standing="undecided")]
    return [
        RecommendedFix(fix=part, settings=row.settings.get(part, {}), standing="together")
        for part in parts
    ]


def _of_findings(
    diagnosis: Diagnosis,
    rows: Sequence[Trial],
    changed: set[str],
    recording: Recording,
    fixes: Mapping[str, FixSpec],
) -> list[RecommendedFix]:
    """`_undecided` by the findings alone."""
    open_rows = [row for row in rows if row.verdict == "unclear" and _may_help(row)]
    open_rows = [row for row in open_rows if not _others_looked_slower(row, rows)]
    for finding in diagnosis.findings:
        found: dict[str, RecommendedFix] = {}
        asked = [(row, number) for row in open_rows for number in range(len(finding.fixes))]
        for row, number in sorted(asked, key=_measured_first):
            parts = row.fix.split(" + ")
            if finding.fixes[number] not in parts or not set(parts) <= set(fixes):
                continue
            standing = "untried" if row.speedup is None else "undecided"
            if standing == "undecided" and len(parts) > 1:
                standing = "together"
            if standing == "untried":
                # Company that nothing calls for by itself is no advice before a run has tried it.
                parts = [part for part in parts if _called_for(fixes[part], diagnosis)]
                if finding.fixes[number] not in parts:
                    continue
                if not all(fixes[part].offered_untried for part in parts):
                    continue
            if _suspect(row, parts, changed, recording, fixes):
                continue
            for part in parts:
                own = row.settings.get(part, {}) if " + " in row.fix else row.settings
                one = RecommendedFix(fix=part, settings=own, standing=standing)
                found.setdefault(part, one)
        if found:
            return list(found.values())[:_MOST_UNDECIDED]
    return []


def _measured_first(asked: tuple[Trial, int]) -> tuple[bool, float]:
    """By the lower end of the interval; then in the finding's order."""
    row, number = asked
    return (row.speedup is None, -row.speedup.low if row.speedup is not None else number)


def _others_looked_slower(row: Trial, rows: Sequence[Trial]) -> bool:
    """Whether a row was not tried, and other settings of one of its fixes alone looked slower."""
    if row.speedup is not None:
        return False
    parts = {row.fix: row.settings}
    if " + " in row.fix:
        parts = {part: row.settings.get(part, {}) for part in row.fix.split(" + ")}
    return any(
        other.fix in parts and other.settings != parts[other.fix]
        for other in rows
        if other.speedup is not None and other.speedup.estimate < 1
    )


def _may_help(row: Trial) -> bool:
    if row.numerics == "changed":
        return False
    return row.speedup.estimate > 1 if row.speedup is not None else row.pairs == 0


def as_code(
    one: RecommendedFix, recording: Recording, fixes: Mapping[str, FixSpec]
) -> RecommendedFix:
    """The fix with its edit and its instruction, as this program needs them."""
    module = fixes.get(one.fix)
    if module is None:
        return one
    words = wording(module, one.settings, recording)
    text, location = words.instruction or "", words.location
    edits: Sequence[Any] = words.edits
    if location is None:
        location = next(
            (Location(file=e.file, line=e.line) for e in edits if getattr(e, "line", None)), None
        )
    folder = folder_of(edits, recording.workload.cwd)
    diff = unified_diff(edits, folder) if edits else None
    if diff is None:
        text = "\n".join([text, *instead(edits)])
    elsewhere = folder if diff is not None and folder != recording.workload.cwd else None
    beside = _beside(edits, recording) if diff is not None else []
    return replace(
        one,
        instruction=text,
        edit=diff,
        location=location,
        folder=elsewhere,
        also_changes=beside,
    )


def _beside(edits: Sequence[Edit], recording: Recording) -> list[str]:
    """What edits of an option's default change beside the call that they are for."""
    where: dict[str, list[str]] = {}
    for name, file, line in also_changed(edits):
        where.setdefault(name, []).append(place(recording, Location(file=file, line=line), file))
    return [
        f"The default of {name} is also used at {', '.join(places)}: that changes with it."
        for name, places in where.items()
    ]


def _neither_measured_nor_refused(
    diagnosis: Diagnosis, rows: Sequence[Trial], recording: Recording, fixes: Mapping[str, FixSpec]
) -> list[RecommendedFix]:
    """Fixes for what was found that were neither measured nor refused."""
    # Of what the user left out by --fixes or --skip, nothing was asked for either.
    seen = {part for row in rows for part in row.fix.split(" + ")}
    # What includes a fix that made it slower is no better advice than that.
    slower = {row.fix for row in rows if row.speedup is not None and row.speedup.estimate < 1}
    offered: list[RecommendedFix] = []
    for finding in diagnosis.findings:
        for ident in finding.fixes:
            module = fixes.get(ident)
            if module is None or ident in seen or module.refuses(recording):
                continue
            if not module.offered_untried or _doubted(module, recording):
                continue
            if not _called_for(module, diagnosis):
                continue
            seen.add(ident)
            if slower.intersection(module.includes(recording)):
                continue
            values = module.settings(recording)
            if not values and not module.offered_as_code(recording):
                continue  # no setting is worth trying, so there is none to write down
            settings: dict[str, Any] = next(iter(values), {})
            offered.append(
                as_code(
                    RecommendedFix(fix=ident, settings=settings, standing="offered"),
                    recording,
                    fixes,
                )
            )
    return offered


def advice(
    rows: Sequence[Trial],
    recording: Recording,
    fixes: Mapping[str, FixSpec],
    tried: Sequence[TrainingTrial] = (),
) -> list[RecommendedFix]:
    """Advice on training itself: not about speed, and only where it was not refused."""
    seen = {row.fix for row in rows}
    found = []
    for ident, module in fixes.items():
        if module.training is None or ident in seen or module.refuses(recording):
            continue
        one = RecommendedFix(
            fix=ident,
            settings=next((_shown(x) for x in tried if x.fix == ident), {}),
            aim="training",
            standing="offered",
            warning=module.training.costs,
        )
        found.append(as_code(one, recording, fixes))
    return found


def _shown(trial: TrainingTrial) -> dict[str, Any]:
    """Settings that the launches found, beside those that the advice knows by itself."""
    found = trial.range_test.max_rate if trial.range_test is not None else None
    if found is not None and trial.verdict == "found":
        return {"max_lr": float(f"{found:.2g}")}
    return {"decay": trial.details["decay"]} if "decay" in trial.details else {}


def _doubted(module: FixSpec, recording: Recording) -> bool:
    """Whether a fix is worth showing only where it was measured to train the same."""
    return module.doubt(recording) is not None


def _called_for(module: FixSpec, diagnosis: Diagnosis) -> bool:
    """Whether what was found is ground enough to offer a fix that no run has tried."""
    needed = module.untried_needs
    return not needed or any(finding.check in needed for finding in diagnosis.findings)
