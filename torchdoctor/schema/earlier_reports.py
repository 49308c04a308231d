"""Reports of schema 1.x -> the fields of today, before they are read as types."""

import re
from collections.abc import Mapping
from typing import Any

from torchdoctor.schema import earlier_processes
from torchdoctor.schema.trials import NO_TIME_LEFT, NOT_WORTH_ITS_TIME, OUT_OF_TIME

_SEPARATOR = " + "  # between the fixes of a set, in the name of a trial
_NAMES_PLACE = re.compile(r"\.py:\d")
_NOT_TRIED = "not tried: "  # stood before the reason of a trial without launches
# Reasons as reports before 2.1 worded them -> their facts; others are kept as they were said.
_REASONS = {
    "not worth its time": NOT_WORTH_ITS_TIME,
    "the time ran out": OUT_OF_TIME,
    "the budget left no time for more": NO_TIME_LEFT,
}
# Remarks whose `why` is a fact, and was a text named `reason`.
_REASON_WAS_TEXT = (
    "launches-in-turns",
    "no-overlay",
    "node-left-out",
    "pair-lost",
    "results-unchecked",
)
_ONE_LAUNCH = "measured in one launch only"
_ENOUGH = re.compile(r"--budget (\d+)s would do")


def upgraded(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report as today's types hold it; one of today stays as it is."""
    today = dict(report)
    if isinstance(trials := report.get("trials"), list):
        today["trials"] = [_trial(trial) for trial in trials]
    if isinstance(diagnosis := report.get("diagnosis"), dict) and "verdict" not in diagnosis:
        today["diagnosis"] = _diagnosis(diagnosis)
    if isinstance(trace := report.get("trace"), dict):
        today["trace"] = _trace(trace)
    if isinstance(remarks := report.get("remarks"), list):
        today["remarks"] = [_remark(remark) for remark in remarks]
    today["failure"] = _failure(report.get("failure"))
    if _is_before(report, (2, 1)):
        today = _with_reasons(today)
    return with_throttling(today)


def _is_before(report: Mapping[str, Any], version: tuple[int, int]) -> bool:
    """Return True if a report is of an earlier schema; one without a number is none of these."""
    numbers = re.fullmatch(r"(\d+)\.(\d+)", str(report.get("schema_version", "")))
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < version


def upgraded_recording(recording: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recording as today's types hold it: what weakens a report were sentences."""
    today = {**with_throttling(recording), "doubts": _doubts(recording.get("doubts"))}
    if isinstance(processes := recording.get("processes"), list):
        today["processes"] = [earlier_processes.upgraded(process) for process in processes]
    if isinstance(workload := recording.get("workload"), dict):
        remark = workload.get("remark")
        if isinstance(remark, str):
            today["workload"] = {**workload, "remark": {"fact": "said", "sentence": remark}}
    today["failure"] = _failure(recording.get("failure"))
    return today


def _failure(failed: Any) -> Any:
    """Return a failure that tells by facts what it has to do with: it was text."""
    text = failed.get("layer") if isinstance(failed, dict) else None
    if not isinstance(text, str):
        return failed
    rest = {name: value for name, value in failed.items() if name != "layer"}
    return {**rest, "besides": [{"fact": "said", "sentence": text}] if text else []}


def with_throttling(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report or recording whose reasons of throttling are data: they were words."""
    sensors = record.get("sensors")
    reasons = sensors.get("gpu_throttle") if isinstance(sensors, dict) else None
    if not isinstance(sensors, dict) or not isinstance(reasons, list):
        return dict(record)
    today = [_throttling(reason) if isinstance(reason, str) else reason for reason in reasons]
    return {**record, "sensors": {**sensors, "gpu_throttle": today}}


def _throttling(words: str) -> dict[str, Any]:
    """Return "power cap 35 %" as data."""
    reason, _, share = words.removesuffix(" %").rpartition(" ")
    return {"reason": reason or words, "share": float(share) / 100 if share.isdecimal() else 0.0}


def _trace(trace: dict[str, Any]) -> dict[str, Any]:
    """Return a trace whose reasons are facts: they were sentences."""
    today = dict(trace)
    for name in ("unusual", "device_missing"):
        reason = trace.get(name)
        if isinstance(reason, str):
            today[name] = {"fact": name, "sentence": reason} if reason else None
    today["doubts"] = _doubts(trace.get("doubts"))
    if isinstance(replay := trace.get("what_if"), dict):
        today["what_if"] = {**replay, "doubts": _doubts(replay.get("doubts"))}
    return today


def _doubts(doubts: Any) -> Any:
    """Return doubts as facts: they were sentences."""
    if not isinstance(doubts, list):
        return []
    return [
        {"fact": "said", "sentence": doubt} if isinstance(doubt, str) else doubt for doubt in doubts
    ]


def _diagnosis(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """Return a diagnosis with facts in place of sentences, and a verdict that holds its place."""
    sentence = str(diagnosis.get("sentence", ""))
    verdict: dict[str, Any] = {"kind": "earlier"}
    if not _NAMES_PLACE.search(sentence):
        verdict["place"] = diagnosis.get("location")
    today = {name: value for name, value in diagnosis.items() if name != "location"}
    today["verdict"] = verdict
    findings = diagnosis.get("findings")
    if not isinstance(findings, list):
        return today
    today["findings"] = [_finding(finding) for finding in findings]
    detail = diagnosis.get("detail")
    for finding in findings:
        if detail is not None and isinstance(finding, dict) and finding.get("check") == detail:
            verdict["proof"] = {"check": detail, "facts": _repeated(finding, sentence)}
            break
    return today


def _repeated(finding: dict[str, Any], sentence: str) -> list[str]:
    """Return the facts of a finding that a verdict repeated, which it did word for word."""
    evidence = finding.get("evidence")
    texts = evidence if isinstance(evidence, list) else []
    return [
        _name(n) for n, text in enumerate(texts, 1) if isinstance(text, str) and text in sentence
    ]


def _name(number: int) -> str:
    """Return the name of a finding's sentence."""
    return f"sentence-{number}"


def _finding(finding: Any) -> Any:
    """Return a finding whose sentences are facts, numbered in place of a name."""
    evidence = finding.get("evidence") if isinstance(finding, dict) else None
    if not isinstance(evidence, list):
        return finding
    facts = [
        {"fact": _name(number), "sentence": text} if isinstance(text, str) else text
        for number, text in enumerate(evidence, 1)
    ]
    return {**finding, "evidence": facts}


def _trial(trial: Any) -> Any:
    """Return a trial with `fixes` in place of `fix` and `settings`."""
    if not isinstance(trial, dict) or not isinstance(trial.get("fix"), str):
        return trial
    rest = {name: value for name, value in trial.items() if name not in ("fix", "settings")}
    for field in ("reason", "because"):
        if isinstance(text := rest.get(field), str):
            rest[field] = text.removeprefix(_NOT_TRIED)
    return {**rest, "fixes": _fixes(trial["fix"], trial.get("settings"))}


def _with_reasons(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report whose reasons are facts too: before 2.1 they were words alone."""
    today = dict(report)
    for name in ("trials", "refused"):
        if isinstance(rows := report.get(name), list):
            today[name] = [_with_why(row, several=True) for row in rows]
    if isinstance(rows := report.get("ceiling_trials"), list):
        today["ceiling_trials"] = [_with_why(row) for row in rows]
    reason = report.get("no_trials_reason")
    if isinstance(reason, str) and report.get("no_trials") is None:
        today["no_trials"] = _said(reason)
        if enough := _ENOUGH.search(reason):
            today["no_trials"] |= {
                "fact": "budget-too-short",
                "values": {"enough_s": int(enough[1])},
            }
    recommended = report.get("recommendation")
    if isinstance(recommended, dict):
        today["recommendation"] = {
            **_with_numerics(recommended),
            "patch_trial": _with_why(recommended.get("patch_trial")),
            "rejected_patches": _rejected(recommended.get("rejected_patches")),
        }
    return today


def _remark(remark: Any) -> Any:
    """Return a remark whose reason is a fact, where that of an earlier version was text."""
    values = remark.get("values") if isinstance(remark, dict) else None
    if not isinstance(values, dict) or remark.get("fact") not in _REASON_WAS_TEXT:
        return remark
    if "reason" not in values:
        return remark
    rest = {name: value for name, value in values.items() if name != "reason"}
    reason = values["reason"]
    why = None if reason is None else earlier_processes.as_message(reason)
    return {**remark, "values": {**rest, "why": why}}


def _rejected(patches: Any) -> Any:
    """Return rejected patches whose details are facts too."""
    if not isinstance(patches, list):
        return []
    today = []
    for rejected in patches:
        detail = rejected.get("detail") if isinstance(rejected, dict) else None
        if not isinstance(detail, str):
            today.append(rejected)
            continue
        why = _said(detail)
        if detail in rejected.get("fixes", ()):  # the fix that has no edit
            why = {**why, "fact": "no-edit-for", "values": {"fixes": [detail]}}
        today.append({**rejected, "why": why})
    return today


def _with_why(row: Any, several: bool = False) -> Any:
    """Return a trial, or what is like one, whose reasons are facts too."""
    if not isinstance(row, dict):
        return row
    today = dict(row)
    reason = row.get("reason")
    if isinstance(reason, str) and not row.get("why"):
        today["why"] = [_said(reason)] if several else _said(reason)
    because = row.get("because")
    if isinstance(because, str) and row.get("choice") is None:
        today["choice"] = _said(because)
    return _with_numerics(today)


def _with_numerics(row: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured with what its numerics rest on as a fact too."""
    reason = row.get("numerics_reason")
    if isinstance(reason, str) and row.get("numerics_why") is None:
        return {**row, "numerics_why": {"fact": "said", "sentence": reason}}
    return row


def _said(reason: str) -> dict[str, Any]:
    """Return a reason as a fact, which keeps its words."""
    fact = "blocks-only" if reason.startswith(_ONE_LAUNCH) else _REASONS.get(reason, "said")
    return {"fact": fact, "sentence": reason}


def _fixes(name: str, settings: Any) -> dict[str, Any]:
    given_settings = settings if isinstance(settings, dict) else {}
    if _SEPARATOR not in name:
        return {name: given_settings}
    return {fix: given_settings.get(fix, {}) for fix in name.split(_SEPARATOR)}
