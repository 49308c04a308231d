"""Every form that a trace file comes in, and every kind of damage."""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_traces import BASE, EVERY_BRANCH, TraceBuilder, every_branch

from torchdoctor.reports.remarks import FILES
from torchdoctor.schema.errors import UsageError
from torchdoctor.trace.columns import Trace
from torchdoctor.trace.files import trace_paths
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise


def read(data: bytes, block_bytes: int = 1 << 20) -> Trace:
    return read_trace(io.BytesIO(data), block_bytes=block_bytes)


def rows(trace: Trace, table: str) -> list[tuple]:
    """A table with its interned values spelled out, in an order of its own."""
    columns = getattr(trace, table)
    names = [trace.names[name] for name in columns.name]
    threads = [str(trace.threads[thread]) for thread in columns.thread]
    others = [columns[key] for key in columns.columns if key not in ("shapes", "product")]
    if table == "operators":
        sizes = [trace.products[row].dims if row >= 0 else b"null" for row in columns["product"]]
        others.append([str(json.loads(text or b"null")) for text in sizes])
    base = round(trace.base_us * 1000)
    start, end = columns.start + base, columns.end + base
    return sorted(zip(start, end, names, threads, *others, strict=True))


def durations(trace: Trace) -> list[tuple[str, int]]:
    rows = zip(trace.operators.name, trace.operators.end - trace.operators.start, strict=True)
    return [(trace.names[name], int(length)) for name, length in rows]


def assert_every_branch(trace: Trace) -> None:
    shares = summarise(trace).shares
    for branch, expected in EVERY_BRANCH.items():
        assert getattr(shares, branch) == pytest.approx(expected, abs=1e-9), branch


def test_an_object_and_a_list_are_read_alike() -> None:
    builder = every_branch()
    assert_every_branch(read(builder.text()))
    assert_every_branch(read(json.dumps(builder.events).encode()))
    assert_every_branch(read(b"\xef\xbb\xbf \n" + json.dumps(builder.events, indent=2).encode()))


@pytest.mark.parametrize("block_bytes", [2, 333, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_a_byte_order_mark_hides_nothing(packed: bool, block_bytes: int) -> None:
    """Editors and shells of Windows put one in front, and the header was lost behind it."""
    builder = every_branch()
    information = {"rank": 1, "world_size": 2}
    data = b"\xef\xbb\xbf" + builder.text(distributedInfo=information, traceName="after")
    trace = read(gzip.compress(data) if packed else data, max(block_bytes, 16 * packed))
    assert_every_branch(trace)
    assert trace.metadata["distributedInfo"] == information
    assert trace.metadata["schemaVersion"] == 1  # stands before the events
    assert trace.doubts == []


def test_the_categories_of_2020_are_read() -> None:
    assert_every_branch(read(every_branch(legacy=True).text()))


@pytest.mark.parametrize("block_bytes", [50, 333, 4096])
def test_blocks_of_any_size_give_the_same_columns(block_bytes: int) -> None:
    data = every_branch().text(deviceProperties=[{"id": 0, "name": "A"}, {"id": 1, "name": "A"}])
    whole, blocks = read(data), read(data, block_bytes)
    assert blocks.doubts == whole.doubts == []
    assert blocks.metadata == whole.metadata
    assert blocks.metadata["traceName"] == "t.json"  # stands after the events
    for table in ("operators", "annotations", "runtime", "device"):
        assert rows(blocks, table) == rows(whole, table), table


def test_gzip_is_told_by_its_content(tmp_path: Path) -> None:
    data = every_branch().text()
    for name in ("a.json", "b.json.gz"):
        file = tmp_path / name
        file.write_bytes(gzip.compress(data))
        assert_every_branch(read_trace(file))


def test_gzip_of_several_members_and_with_padding() -> None:
    data = every_branch().text()
    members = gzip.compress(data[:1000]) + gzip.compress(data[1000:])
    assert_every_branch(read(members))
    trace = read(members + b"\0" * 512)
    assert_every_branch(trace)
    assert trace.doubts == []


def test_gzip_without_isal_reads_the_same(tmp_path: Path) -> None:
    file = tmp_path / "t.json.gz"
    file.write_bytes(gzip.compress(every_branch().text()))
    code = (
        "import sys; sys.modules['isal'] = None\n"
        "from pathlib import Path\n"
        "from torchdoctor.trace import files as trace_files\n"
        "from torchdoctor.trace.reader import read_trace\n"
        "from torchdoctor.trace.summary import summarise\n"
        "assert trace_files.zlib.__name__ == 'zlib'\n"
        f"print(summarise(read_trace(Path({str(file)!r}))).shares.gpu)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(EVERY_BRANCH["gpu"])


def test_a_folder_stands_for_its_ranks(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_bytes(every_branch(steps=2 + rank).text())
    (tmp_path / "notes.txt").write_text("no trace")
    assert [summarise(read_trace(path)).steps for path in trace_paths(tmp_path)] == [2, 3, 4]
    with pytest.raises(UsageError, match="holds no"):
        trace_paths(_folder(tmp_path / "empty"))
    with pytest.raises(UsageError, match="does not exist"):
        trace_paths(tmp_path / "missing.json")


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"   \n",
        b"hello",
        b"\x00\x01\x02" * 100,
        b'{"schema_version": "1.0", "trials": []}',
        b'{"traceEvents": []}',
        b"[]",
        b"[1, 2, 3]",
        b'"traceEvents"',
        gzip.compress(b"hello", mtime=0),
        gzip.compress(b'{"traceEvents": [', mtime=0)[:15],
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        read(data)
    assert str(caught.value).startswith("standard input")
    assert str(caught.value).count(". ") == 0


REFUSED = {
    "a list of lists": ([[1, 2], [3]], "no event that can be read"),
    "begin and end": ([{"ph": "B", "cat": "cpu_op", "name": "a"}, {"ph": "E"}], "pass a file"),
    "no category": ([{"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2}] * 9, "pass a file"),
    "an empty window": (
        [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1, "dur": 9}],
        "a later window without work overwrites",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_why_a_trace_is_refused_fits_what_it_is(kind: str) -> None:
    events, why = REFUSED[kind]
    for document in (events, {"traceEvents": events}):
        with pytest.raises(UsageError) as caught:
            read(json.dumps(document).encode())
        assert why in str(caught.value)
        assert "cut off" not in str(caught.value)
        assert str(caught.value).count(". ") == 0


def test_a_truncated_file_is_read_as_far_as_it_goes() -> None:
    builder = every_branch(steps=4)
    data = builder.text()
    slices = [e for e in builder.events if e["ph"] == "X"]
    first_event = data.index(b'"ph"')
    array_end = data.rindex(b"]")
    seen = []
    for cut in range(array_end - 20, first_event + 800, -977):
        trace = read(data[:cut], block_bytes=2048)
        assert any(doubt.fact in FILES for doubt in trace.doubts), cut
        tables = (trace.operators, trace.annotations, trace.runtime, trace.device, trace.spans)
        seen.append(sum(len(table) for table in tables))
        whole = data[:cut].count(b'"ph": "X"')
        assert whole - 1 <= seen[-1] <= whole
        summarise(trace)
    assert seen == sorted(seen, reverse=True)
    assert seen[0] >= len(slices) - 1


def test_an_object_cut_after_its_events_lacks_nothing() -> None:
    data = every_branch().text()
    trace = read(data[: data.rindex(b"]") + 1])
    assert trace.doubts == []
    assert_every_branch(trace)


def test_a_gzip_that_is_damaged_from_its_start_is_not_called_empty() -> None:
    packed = bytearray(gzip.compress(every_branch().text()))
    packed[10] ^= 0xFF
    with pytest.raises(UsageError, match="damaged inside its compression"):
        read(bytes(packed))


def test_a_truncated_gzip_is_read_as_far_as_it_goes() -> None:
    packed = gzip.compress(every_branch(steps=40).text())
    trace = read(packed[: len(packed) // 2])
    assert any("compression" in doubt.fact for doubt in trace.doubts)
    assert 5 < summarise(trace).steps < 40


def test_damage_in_the_middle_costs_only_the_events_it_hit() -> None:
    builder = every_branch(steps=20)
    data = bytearray(builder.text())
    events = [i for i in range(len(data)) if data.startswith(b'"ph"', i)]
    for index in (40, 41, 90, 200):
        data[events[index] + 10 : events[index] + 25] = b'"{[broken,,,}}'
    slices = sum(event["ph"] == "X" for event in builder.events)
    for block_bytes in (700, 1 << 20):
        trace = read(bytes(data), block_bytes)
        tables = (trace.operators, trace.annotations, trace.runtime, trace.device, trace.spans)
        assert slices - 8 <= sum(len(table) for table in tables) < slices
        assert any("damaged" in doubt.fact for doubt in trace.doubts)
        assert summarise(trace).shares.gpu == pytest.approx(EVERY_BRANCH["gpu"], abs=0.03)


@pytest.mark.parametrize(
    "wrong",
    [
        b'"blocks per SM": inf',
        b'"blocks per SM": -nan',
        b'"path": "C:\\windows\\qwerty"',
        b'"text": "two\nlines\tand a tab"',
        b'"text": "\xff\xfe"',
        b'"nested": [{"name": "x"}, {"name": "y"}]',
        b'"sizes": [[NaN, 3], Infinity]',
        b'"stack": "a \\"}, {\\"ph\\": 1"',
        b'"correlation": 18446744073709551615',
        b'"device": "zero"',
    ],
)
def test_what_writers_break_is_mended(wrong: bytes) -> None:
    data = every_branch().text()
    broken = data.replace(b'"cbid": 211,', b'"cbid": 211, ' + wrong + b",", 5)
    assert broken != data
    for block_bytes in (600, 1 << 20):
        trace = read(broken, block_bytes)
        assert trace.doubts == []
        assert len(trace.runtime) == len(read(data).runtime)


def test_unknown_phases_and_odd_types_do_not_stop_it() -> None:
    builder = every_branch()
    builder.events.insert(3, {"ph": "?", "name": "new", "ts": 1})
    builder.events.insert(9, {"name": "no phase"})
    builder.events.insert(12, {"ph": "X", "cat": None, "name": None, "ts": None, "dur": None})
    builder.events[5]["ts"] = str(builder.events[5]["ts"])
    trace = read(builder.text())
    assert_every_branch(trace)


def test_durations_that_overflowed_count_as_instants() -> None:
    builder = every_branch()
    builder.kernel("overflowed", 100, 100 + 18446744073709551.0)
    builder.operator("aten::negative", 100, 40)
    builder.operator("aten::words", 100, 140)
    builder.events[-1]["dur"] = "for ever"
    trace = read(builder.text())
    assert [x.values["lost"] for x in trace.doubts if x.fact == "events-without-duration"] == [3]
    assert_every_branch(trace)


def test_a_whole_number_that_no_float_holds_is_no_duration() -> None:
    """Four hundred digits ended in an OverflowError."""
    builder = every_branch()
    builder.operator("aten::endless", 100, 140)
    builder.events[-1]["dur"] = 10**400
    builder.operator("aten::never", 100, 140)
    builder.events[-1]["ts"] = 10**400
    trace = read(builder.text())
    assert [x.values["lost"] for x in trace.doubts if x.fact == "events-without-duration"] == [1]
    assert [x.values["lost"] for x in trace.doubts if x.fact == "events-without-time"] == [1]
    assert_every_branch(trace)


def test_float_times_relative_to_a_base() -> None:
    trace = read(every_branch(base=0.125).text(baseTimeNanoseconds=1_700_000_000_000_000_000))
    assert trace.metadata["baseTimeNanoseconds"] == 1_700_000_000_000_000_000
    assert_every_branch(trace)


def test_times_are_exact_to_the_nanosecond() -> None:
    builder = TraceBuilder(base=4_458_676_522_690.0)
    builder.operator("aten::add", 0.655, 157.432)
    assert durations(read(builder.text())) == [("aten::add", 156_777)]


def test_random_cuts_never_raise_anything_else() -> None:
    data = every_branch(steps=2).text()
    chance = random.Random(5)
    for _ in range(60):
        damaged = bytearray(data[: chance.randrange(len(data))])
        for _ in range(chance.randrange(4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            summarise(read(bytes(damaged), chance.choice([100, 5000])))
        except UsageError:
            continue


def test_base_is_kept_for_clock_comparison() -> None:
    assert read(every_branch().text()).base_us == BASE - 10


@pytest.mark.parametrize("odd", ['null, 5, "x", [], {}', "null", "{}, true, 1.5", '[{"ph": "X"}]'])
@pytest.mark.parametrize("tail", ["]}", '], "schemaVersion": 1, "trace_id": "]}"}'])
def test_entries_that_are_no_events_are_passed_over(odd: str, tail: str) -> None:
    events = every_branch().events
    texts = [json.dumps(event) for event in events]
    text = ", ".join([*texts[:7], odd, *texts[7:]])
    trace = read(('{"traceEvents": [' + text + tail).encode())
    assert trace.doubts == [] and not trace.cut_off
    assert_every_branch(trace)
    assert len(trace.operators) == sum(
        event["cat"] == "cpu_op" for event in events if "cat" in event
    )
    assert trace.metadata.get("trace_id") == ("]}" if "trace_id" in tail else None)
