"""The annotated copy of a trace: everything that was there, and our tracks."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest
from synthetic_traces import every_branch

from torchdoctor.schema import Evidence, Finding
from torchdoctor.schema.errors import UsageError
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise
from torchdoctor.trace.timeline import annotate, build_timeline

EVIDENCE = [Evidence(fact=text, sentence=text) for text in ("One.", "Two.")]
FINDINGS = [Finding(check="pageable-copies", share_of_step=0.1, evidence=EVIDENCE)]


def write_annotated(source: Path, target: Path) -> None:
    trace = read_trace(source)
    annotate(source, target, build_timeline(trace), trace.base_us, FINDINGS)


def annotated(folder: Path, root: str, target: str) -> tuple[list[dict], list[dict]]:
    """(events before, events after) of a trace whose root is an object or a list."""
    document = every_branch().document(deviceProperties=[{"id": 0, "name": "GPU"}])
    before = document["traceEvents"]
    content = json.dumps(document if root == "object" else before).encode()
    source = folder / "source.json"
    source.write_bytes(gzip.compress(content) if target.endswith(".gz") else content)
    write_annotated(source, folder / target)
    written = (folder / target).read_bytes()
    found = json.loads(gzip.decompress(written) if target.endswith(".gz") else written)
    if root == "object":
        assert {k: v for k, v in found.items() if k != "traceEvents"} == {
            k: v for k, v in document.items() if k != "traceEvents"
        }
    return before, found["traceEvents"] if root == "object" else found


@pytest.mark.parametrize("root", ["object", "list"])
@pytest.mark.parametrize("target", ["out.json", "out.json.gz"])
def test_the_original_stays_and_ours_come_first(tmp_path: Path, root: str, target: str) -> None:
    before, after = annotated(tmp_path, root, target)
    assert after[-len(before) :] == before
    ours = after[: -len(before)]
    assert {event["pid"] for event in ours} == {2_000_000_000}
    tracks = {e["args"]["name"] for e in ours if e["name"] == "thread_name"}
    assert len(tracks) == 3 and {"steps", "findings"} <= tracks
    finding = next(e for e in ours if e["name"] == "pageable-copies 10%")
    assert finding["args"]["evidence"] == "One. Two."


def test_what_a_step_is_in_fills_it_once(tmp_path: Path) -> None:
    _, after = annotated(tmp_path, "object", "out.json")
    ours = [e for e in after if e.get("cat") == "torchdoctor"]
    steps = [e for e in ours if e["tid"] == 1]
    parts = [e for e in ours if e["tid"] == 2]
    assert sum(e["dur"] for e in parts) == pytest.approx(sum(e["dur"] for e in steps), rel=0.01)
    by_label: dict[str, float] = {}
    for part in parts:
        by_label[part["name"]] = by_label.get(part["name"], 0.0) + part["dur"]
    total = sum(e["dur"] for e in steps)
    assert by_label["GPU kernels"] / total == pytest.approx(steps[0]["args"]["gpu"], abs=0.01)


def test_the_copy_is_diagnosed_as_the_original(tmp_path: Path) -> None:
    annotated(tmp_path, "object", "out.json")
    one, other = (summarise(read_trace(tmp_path / name)) for name in ("source.json", "out.json"))
    assert (one.shares, one.step_times_s) == (other.shares, other.step_times_s)


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path) -> None:
    annotated(tmp_path, "object", "out.json")
    missing = tmp_path / "no" / "out.json"
    with pytest.raises(UsageError, match="Cannot write"):
        write_annotated(tmp_path / "source.json", missing)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "source.json"]


def strictly(data: bytes) -> list[dict]:
    """The events of a document that is valid JSON to the letter, NaN and the like refused."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    document = json.loads(data, parse_constant=refuse)
    return document if isinstance(document, list) else document["traceEvents"]


@pytest.mark.parametrize("root", ["object", "list"])
@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_a_trace_that_was_cut_off_is_closed_after_its_last_whole_event(
    tmp_path: Path, root: str, suffix: str
) -> None:
    document = every_branch(steps=4).document(deviceProperties=[{"id": 0}])
    events = document["traceEvents"]
    text = json.dumps(document if root == "object" else events, indent=1).encode()
    whole = gzip.compress(text, mtime=0) if suffix == "json.gz" else text
    source, target = tmp_path / f"cut.{suffix}", tmp_path / "out.json"
    kept = []
    for cut in range(len(whole) // 2, len(whole), len(whole) // 37):
        source.write_bytes(whole[:cut])
        write_annotated(source, target)
        found = [e for e in strictly(target.read_bytes()) if e["pid"] != 2_000_000_000]
        assert found == events[: len(found)]
        kept.append(len(found))
    assert kept == sorted(kept)
    assert kept[-1] > 0.9 * len(events)


@pytest.mark.parametrize(
    "wrong",
    [
        b'"occupancy": NaN',
        b'"occupancy": -Infinity',
        b'"occupancy": [1, nan, -inf]',
        b'"text": "two\nlines"',
        b'"text": "\xff\xfe"',
        b'"path": "C:\\windows"',
        b'"key" "value"',
    ],
)
def test_what_is_no_json_is_mended_or_left_out(tmp_path: Path, wrong: bytes) -> None:
    data = every_branch().text(note=float("nan"))
    broken = data.replace(b'"cbid": 211,', b'"cbid": 211, ' + wrong + b",", 4)
    source = tmp_path / "source.json"
    source.write_bytes(broken)
    write_annotated(source, tmp_path / "out.json")
    found = strictly((tmp_path / "out.json").read_bytes())
    lost = 4 if wrong.startswith(b'"key"') else 0
    assert len([e for e in found if e["pid"] != 2_000_000_000]) == data.count(b'"ph"') - lost


@pytest.mark.parametrize("root", ["object", "list"])
def test_a_byte_order_mark_is_not_copied(tmp_path: Path, root: str) -> None:
    document = every_branch().document(distributedInfo={"rank": 3})
    content = document if root == "object" else document["traceEvents"]
    (tmp_path / "source.json").write_text(json.dumps(content), encoding="utf-8-sig")
    write_annotated(tmp_path / "source.json", tmp_path / "out.json")
    written = (tmp_path / "out.json").read_bytes()
    assert strictly(written)[-len(document["traceEvents"]) :] == document["traceEvents"]
    if root == "object":
        assert json.loads(written)["distributedInfo"] == {"rank": 3}


def test_a_trace_is_not_annotated_into_itself(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_bytes(every_branch().text())
    before = source.read_bytes()
    link = tmp_path / "link.json"
    link.symlink_to(source)
    for target in (source, link):
        with pytest.raises(UsageError, match="the trace itself"):
            write_annotated(source, target)
    assert source.read_bytes() == before


def test_a_pipe_stays_a_pipe_and_no_file_beside_is_touched(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_bytes(every_branch().text())
    (tmp_path / "out.json.part").write_text("precious")
    write_annotated(source, tmp_path / "out.json")
    assert (tmp_path / "out.json.part").read_text() == "precious"
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        write_annotated(source, tmp_path / "pipe")
        content, _ = reader.communicate(timeout=600)
    assert content == (tmp_path / "out.json").read_bytes()
    assert (tmp_path / "pipe").is_fifo()
