"""Reports of schema 1.x -> the fields of today, before they are read as types."""

import re
from collections.abc import Mapping
from typing import Any

_SEPARATOR = " + "  # between the fixes of a set, in the name of a trial
_NAMES_PLACE = re.compile(r"\.py:\d")
_NOT_TRIED = "not tried: "  # stood before the reason of a trial without launches


def upgraded(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report as today's types hold it; one of today stays as it is."""
    today = dict(report)
    if isinstance(trials := report.get("trials"), list):
        today["trials"] = [_trial(trial) for trial in trials]
    if isinstance(diagnosis := report.get("diagnosis"), dict) and "verdict" not in diagnosis:
        today["diagnosis"] = _diagnosis(diagnosis)
    return today


def _diagnosis(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """Return a diagnosis with facts in place of sentences, and a verdict that holds its place."""
    found = diagnosis.get("findings")
    findings = [_finding(finding) for finding in found] if isinstance(found, list) else found
    told = str(diagnosis.get("sentence", ""))
    place = None if _NAMES_PLACE.search(told) else diagnosis.get("location")
    verdict: dict[str, Any] = {"kind": "earlier", "place": place}
    # Its sentence repeats facts of the finding that explains it, word for word.
    for finding in findings if isinstance(findings, list) else []:
        if isinstance(finding, dict) and finding.get("check") == diagnosis.get("detail"):
            facts = [x["fact"] for x in finding["evidence"] if x["sentence"] in told]
            verdict["proof"] = {"check": finding["check"], "facts": facts}
            break
    rest = {name: value for name, value in diagnosis.items() if name != "location"}
    return {**rest, "findings": findings, "verdict": verdict}


def _finding(finding: Any) -> Any:
    """Return a finding whose sentences are facts, numbered in place of a name."""
    evidence = finding.get("evidence") if isinstance(finding, dict) else None
    if not isinstance(evidence, list):
        return finding
    facts = [
        {"fact": f"sentence-{number}", "sentence": text} if isinstance(text, str) else text
        for number, text in enumerate(evidence, 1)
    ]
    return {**finding, "evidence": facts}


def _trial(trial: Any) -> Any:
    """Return a trial with `fixes` in place of `fix` and `settings`."""
    if not isinstance(trial, dict) or "fix" not in trial:
        return trial
    rest = {name: value for name, value in trial.items() if name not in ("fix", "settings")}
    for field in ("reason", "because"):
        if isinstance(text := rest.get(field), str):
            rest[field] = text.removeprefix(_NOT_TRIED)
    return {**rest, "fixes": _fixes(str(trial["fix"]), trial.get("settings"))}


def _fixes(name: str, settings: Any) -> dict[str, Any]:
    known = settings if isinstance(settings, dict) else {}
    if _SEPARATOR not in name:
        return {name: known}
    return {fix: known.get(fix, {}) for fix in name.split(_SEPARATOR)}
