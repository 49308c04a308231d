"""Reports of schema 1.x -> the fields of today, before they are read as types."""

from collections.abc import Mapping
from typing import Any

_SEPARATOR = " + "  # between the fixes of a set, in the name of a trial
_NOT_TRIED = "not tried: "  # stood before the reason of a trial without launches


def upgraded(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report as today's types hold it; one of today stays as it is."""
    trials = report.get("trials")
    if not isinstance(trials, list):
        return dict(report)
    return {**report, "trials": [_trial(trial) for trial in trials]}


def _trial(trial: Any) -> Any:
    """Return a trial with `fixes` in place of `fix` and `settings`."""
    if not isinstance(trial, dict) or not isinstance(trial.get("fix"), str):
        return trial
    rest = {name: value for name, value in trial.items() if name not in ("fix", "settings")}
    for field in ("reason", "because"):
        if isinstance(text := rest.get(field), str):
            rest[field] = text.removeprefix(_NOT_TRIED)
    return {**rest, "fixes": _fixes(trial["fix"], trial.get("settings"))}


def _fixes(name: str, settings: Any) -> dict[str, Any]:
    known = settings if isinstance(settings, dict) else {}
    if _SEPARATOR not in name:
        return {name: known}
    return {fix: known.get(fix, {}) for fix in name.split(_SEPARATOR)}
