"""The JSON Schemas of what is written, and the page of report.json: all from the types.

`python -m torchdoctor.words.record_schema --schema` prints the schema of report.json, `--gate-schema`
that of a gate's result, `--compare-schema` that of a comparison, `--page` the page; meanings come
from `records/field_notes.py`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import msgspec

from torchdoctor import words as records
from torchdoctor.words import BRANCHES, Report, comparison, gate
from torchdoctor.words.comparison import Comparison
from torchdoctor.words.field_notes import CHOICES, NOTES
from torchdoctor.words.gate import GateReport


def report_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of report.json; every field is always written, so required."""
    schema = _schema(Report, "torchdoctor report.json")
    schema["$defs"]["Report"]["properties"]["ceilings"]["required"] = list(BRANCHES)
    return schema


def gate_schema() -> dict[str, Any]:
    """The same of what `torchdoctor gate --json` writes."""
    return _schema(GateReport, "torchdoctor gate result")


def comparison_schema() -> dict[str, Any]:
    """The same of what `torchdoctor compare --json` writes."""
    return _schema(Comparison, "torchdoctor comparison")


def _schema(whole: type, title: str) -> dict[str, Any]:
    schema = msgspec.json.schema(whole)
    for kind, definition in schema["$defs"].items():
        properties = definition["properties"]
        for name, field in properties.items():
            field.pop("default", None)
            if (kind, name) in CHOICES:
                field["enum"] = list(CHOICES[kind, name])
            field["description"] = NOTES.get(kind, {}).get(name, "")  # a test refuses a missing one
        names = [field.name for field in dataclasses.fields(_type_named(kind))]
        definition["properties"] = {name: properties[name] for name in names}
        definition["required"] = names
    schema["$defs"][whole.__name__]["properties"]["schema_version"]["pattern"] = r"^1\.\d+$"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **schema,
    }


def _type_named(kind: str) -> Any:
    for module in (records, gate, comparison):
        if found := getattr(module, kind, None):
            return found
    raise AttributeError(f"{kind} is no record")


def _type_words(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type_words(entry) for entry in field["anyOf"])
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if field.get("type") == "array":
        return f"list of {_type_words(field['items'])}"
    if isinstance(field.get("additionalProperties"), dict):
        return f"object of {_type_words(field['additionalProperties'])}"
    return str(field.get("type", "any"))


def report_page() -> str:
    """The page docs/report.md: every field of report.json with its type and meaning."""
    lines = [
        "# report.json",
        "",
        "`torchdoctor run --json FILE` writes it, and every run folder holds one. Every field",
        "below is always there; null means *not measured*, never zero. Within schema 1.x fields",
        "are only added, so pass over those that you do not know. NaN and infinity never appear.",
        "Units stand in the names: `_s` seconds, `_bytes`, `_share` 0 to 1. The same as a schema:",
        "[report.schema.json](report.schema.json).",
    ]
    for kind, definition in report_schema()["$defs"].items():
        summary = " ".join(definition.get("description", "").split())
        lines += ["", f"## {kind}", "", summary, "", "| field | type | meaning |", "|---|---|---|"]
        for name, field in definition["properties"].items():
            choices = ", ".join(f"`{value}`" for value in field.get("enum", []))
            meaning = field["description"] + (f" One of {choices}." if choices else "")
            lines.append(f"| `{name}` | {_type_words(field)} | {meaning} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Print a schema (`--schema`, `--gate-schema`, `--compare-schema`) or the page (`--page`)."""
    schemas = {
        "--schema": report_schema,
        "--gate-schema": gate_schema,
        "--compare-schema": comparison_schema,
    }
    if len(arguments) == 1 and arguments[0] in schemas:
        sys.stdout.write(json.dumps(schemas[arguments[0]](), indent=2) + "\n")
    elif arguments == ["--page"]:
        sys.stdout.write(report_page())
    else:
        options = " | ".join([*schemas, "--page"])
        sys.stderr.write(f"usage: python -m torchdoctor.words.record_schema {options}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
