"""Findings as SARIF 2.1.0, for code scanning: one result for each finding with a place."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from torchdoctor.words import Finding, Report
from torchdoctor.words.figures import clean, relative

_LEVELS = {"high": "warning", "moderate": "warning", "advice": "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(report: Report) -> str:
    """Return the findings as a SARIF log, ending with a newline."""
    findings = report.diagnosis.findings
    rules = [
        {"id": ident, "shortDescription": {"text": ident.replace("-", " ")}}
        for ident in dict.fromkeys(finding.check for finding in findings)
    ]
    driver = {"name": "torchdoctor", "version": report.torchdoctor_version or "0", "rules": rules}
    results = [_result(finding, report.workload.cwd) for finding in findings]
    run = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(finding: Finding, cwd: str) -> dict[str, Any]:
    text = clean(" ".join(finding.evidence)) or finding.check
    result: dict[str, Any] = {
        "ruleId": finding.check,
        "level": _LEVELS.get(finding.severity, "note"),
        "message": {"text": text},
        # SARIF has no level between these: an "error" would fail a build for being slow.
        "properties": {"severity": finding.severity, "share_of_step": finding.share_of_step},
    }
    if finding.location is not None:
        path = PurePath(relative(finding.location.file, cwd))
        place = {
            "artifactLocation": {"uri": path.as_uri() if path.is_absolute() else quote(str(path))},
            "region": {"startLine": max(finding.location.line, 1)},
        }
        result["locations"] = [{"physicalLocation": place}]
    return result
