"""The JSON Schemas of all files that are written, and the page of report.json, from the types.

`python tools/record_schema.py docs` writes them. The meaning of a field is its `#:`
comment.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from torchdoctor import schema as records
from torchdoctor.reports.summary import summarized
from torchdoctor.schema import BRANCHES, SCHEMA_VERSION, FixSet, Report, comparison, gate, summary
from torchdoctor.schema.comparison import Comparison
from torchdoctor.schema.gate import GateReport
from torchdoctor.schema.record_files import read_report, write_record

_TYPES = {**vars(records), **vars(gate), **vars(comparison), **vars(summary)}


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of report.json; each field is always written: required."""
    schema = _schema(Report, "torchdoctor report.json")
    schema["$defs"]["Report"]["properties"]["ceilings"]["required"] = list(BRANCHES)
    return schema


def _schema(whole: type, title: str) -> dict[str, Any]:
    schema = msgspec.json.schema(whole, schema_hook=_of_own_type)
    for kind, definition in schema["$defs"].items():
        record = _TYPES[kind]
        meanings, hints = field_meanings(record), get_type_hints(record, include_extras=True)
        properties = {name: definition["properties"][name] for name in meanings}
        for name, meaning in meanings.items():
            properties[name].pop("default", None)
            if choices := getattr(hints[name], "__metadata__", ()):
                if {"type": "null"} in properties[name].get("anyOf", []):
                    choices = (*choices, None)
                # Not a Literal: files with other values are read all the same.
                properties[name] = {"enum": list(choices), **properties[name]}
            properties[name]["description"] = meaning
        definition |= {"properties": properties, "required": list(properties)}
    version = next(field.default for field in fields(whole) if field.name == "schema_version")
    major = version.partition(".")[0]
    schema["$defs"][whole.__name__]["properties"]["schema_version"]["pattern"] = rf"^{major}\.\d+$"
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    kind = f"urn:torchdoctor:{whole.__name__.lower()}:{version}"
    return {**head, "$id": kind, **schema}


def _of_own_type(kind: type) -> dict[str, Any]:
    """Return the schema of a type that msgspec does not know: an object of objects."""
    if kind is not FixSet:
        raise NotImplementedError(kind)
    return {"type": "object", "additionalProperties": {"type": "object"}}


def field_meanings(kind: type) -> dict[str, str]:
    """Return what each field of a type means, in order: the `#:` comment behind it or above it."""
    meanings: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        code, _, comment = line.partition("#: ")
        if name := re.match(r" {4}(\w+): ", code):
            meanings[name[1]] = " ".join([*above, comment]).strip()
            above = []
        elif comment and not code.strip():
            above.append(comment)
    return meanings


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


def _filled(value: Any) -> Any:
    """Return JSON without what is null or empty."""
    if isinstance(value, dict):
        pairs = ((name, _filled(entry)) for name, entry in value.items())
        return {name: entry for name, entry in pairs if entry not in (None, [], {}, "")}
    return [_filled(entry) for entry in value] if isinstance(value, list) else value


def report_page(example: str) -> str:
    """Return docs/report.md: an example, and every field of report.json with type and meaning."""
    shown = json.dumps(_filled(json.loads(example)), indent=1, ensure_ascii=False)
    lines = [
        "# report.json",
        "",
        "Every run folder holds one, and `torchdoctor diagnose TRACE --output FILE.json` writes",
        "one. Every field below is always there; null means *not measured*, never zero. Within",
        "schema 2.x fields are only added, so pass over those that you do not know. NaN and",
        "infinity never appear. Units stand in the names: `_s` seconds, `_bytes`, `_share` 0 to 1.",
        "The same as a schema:",
        f"[report.schema.json](report.schema.json), version {SCHEMA_VERSION}.",
        "[An example](#an-example) stands at the end.",
    ]
    for kind, definition in report_schema()["$defs"].items():
        summary = " ".join(definition.get("description", "").split())
        lines += ["", f"## {kind}", "", summary, "", "| field | type | meaning |", "|---|---|---|"]
        for name, field in definition["properties"].items():
            named = [value for value in field.get("enum", []) if value is not None]
            choices = ", ".join(f"`{value}`" for value in named)
            meaning = field["description"] + (f" One of {choices}." if choices else "")
            lines.append(f"| `{name}` | {_type_words(field)} | {meaning} |")
    told = "[report.example.json](report.example.json), here without what is null or empty:"
    return "\n".join([*lines, "", "## An example", "", told, "", f"```json\n{shown}\n```", ""])


SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "report": report_schema,
    "gate": partial(_schema, GateReport, "torchdoctor gate result"),
    "compare": partial(_schema, Comparison, "torchdoctor comparison"),
}


def main(arguments: list[str]) -> int:
    """Write the schemas and the page into a folder, usually docs."""
    if len(arguments) != 1:
        print("usage: record_schema.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    for name, schema in SCHEMAS.items():
        text = json.dumps(schema(), indent=2) + "\n"
        (folder / f"{name}.schema.json").write_text(text, encoding="utf-8")
    example = folder / "report.example.json"
    write_record(summarized(read_report(example)), example)  # with the fields that were added since
    page = report_page(example.read_text(encoding="utf-8"))
    (folder / "report.md").write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
