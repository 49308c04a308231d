"""`torchdoctor compare` as a command: formats, files of all kinds, exit codes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import commands
import jsonschema
import pytest
import shown
from compared_pairs import diagnosed, run_with, samples, synthetic, trace_of

from torchdoctor.compare import compare
from torchdoctor.reports import comparison as formats
from torchdoctor.schema.figures import SHARE_LABELS
from torchdoctor.schema.record_files import encode, write_record

ROOT = Path(__file__).parent.parent


def command(*arguments: object) -> subprocess.CompletedProcess:
    return commands.torchdoctor("compare", *map(str, arguments))


def test_formats_hold_80_columns_and_say_the_same(tmp_path: Path) -> None:
    long = replace(samples.GPU_MACHINE, cpu="A processor with a very long name " * 4)
    pairs = [
        (samples.loader_bound(), samples.compute_bound()),
        (run_with(), run_with(1.5, environment=long)),
        (
            diagnosed(tmp_path, "a.json", trace_of()),
            diagnosed(tmp_path, "b.json", synthetic.every_branch()),
        ),
    ]
    for a, b in pairs:
        found = compare(a, b, ("a" * 120, "b.json"))
        text = shown.terminal(found, width=80)
        assert max(map(len, text.splitlines())) <= 80
        assert found.sentence in " ".join(text.split())
        marked = shown.markdown(found)
        for section in formats.document(found).details:
            assert section.title in text
            assert f"#### {section.title}" in marked
        assert len(shown.terminal(found, details=False).splitlines()) <= 15
        assert json.loads(encode(found))["sentence"] == found.sentence


def test_the_command_reads_all_kinds_by_content(tmp_path: Path) -> None:
    report, trace, zipped = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.json"
    write_record(samples.loader_bound(), report)
    trace.write_bytes(trace_of().text())
    zipped.write_bytes(gzip.compress(trace_of(loader_us=600.0).text()))
    out = tmp_path / "out.json"
    result = command(trace, zipped)
    assert result.returncode == command(trace, zipped, "--output", out).returncode == 0
    written = json.loads(out.read_text())
    assert written["parts"][0]["name"] == "data_loader"
    assert f"{SHARE_LABELS['data_loader']} (+300 us)" in " ".join(result.stdout.split())
    jsonschema.validate(written, json.loads((ROOT / "docs" / "compare.schema.json").read_text()))
    mixed = command(report, trace, "--format", "json")
    assert mixed.returncode == 0, mixed.stderr
    assert json.loads(mixed.stdout)["a"]["kind"] == "run"
    assert command(report, report, "--format", "markdown").stdout.startswith("### torchdoctor")


BAD = {
    "missing": None,
    "empty": b"",
    "text": b"hello\n",
    "other JSON": b'{"a": 1}',
    "a list": b"[1, 2]",
    "binary": bytes(range(256)) * 9,
    "gzip of text": gzip.compress(b"no trace"),
    "damaged report": b'{"schema_version": "1.0", "diagnosis": ',
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_neither_is_one_sentence(kind: str, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    write_record(samples.loader_bound(), good)
    if BAD[kind] is not None:
        bad.write_bytes(BAD[kind])
    result = command(good, bad)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("torchdoctor: ")
    assert "bad.json" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_cut_trace_is_told_and_both_are_called_alike(tmp_path: Path) -> None:
    """It said "1.94x the time" of a file that ends in the middle, which was called "cut"."""
    whole, cut = tmp_path / "ok.json", tmp_path / "cut.json.gz"
    text = trace_of().text()
    whole.write_bytes(text)
    cut.write_bytes(gzip.compress(text[: int(0.7 * len(text))]))
    result = command(whole, cut)
    assert result.returncode == 0, result.stderr
    head, _, rest = result.stdout.partition("\n\n")
    assert "/ok.json · B:" in head and head.endswith("/cut.json.gz")
    assert "Beware: B:" in rest
    assert "- A:" in command(cut, whole, "--details").stdout
    for sides, side in (((whole, cut), "B"), ((cut, whole), "A")):
        told = json.loads(command(*sides, "--format", "json").stdout)
        [remark] = [x for x in told["remarks"] if x["fact"] == "file-ends-within-event"]
        assert (remark["of"], remark["severity"]) == (side, "beware")


def test_a_trace_without_steps_is_compared_per_call(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(trace_of().text())
    without = trace_of()
    without.events = [e for e in without.events if not e["name"].startswith("ProfilerStep")]
    bad.write_bytes(without.text())
    result = command(good, bad, "--format", "json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["per"], found["verdict"], found["speedup"]) == ("call", "same", None)
    assert found["ratio"] == pytest.approx(1.0, abs=0.01)
    assert "per call" in command(good, bad).stdout
    assert command(good, good, "--format", "yaml").returncode == 2


@pytest.mark.parametrize(
    "arguments",
    ["good.json <(cat good.json)", "<(cat good.json) good.json", "good.json - < good.json"],
)
def test_what_can_be_read_once_only_is_told_to_be_saved(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_bytes(trace_of().text())
    result = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m torchdoctor.cli.front compare {arguments}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=600,
    )
    assert result.returncode == 2, result.stderr
    standard_input = "standard input" in result.stderr
    assert standard_input is ("-" in arguments.split()) and "file" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
