"""Files that a command is told to write: none that torchdoctor did not write is replaced."""

from __future__ import annotations

import functools
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import commands
import pytest
from compared_pairs import samples, synthetic

from torchdoctor.cli.outputs import check_written
from torchdoctor.reports.formats import rendered
from torchdoctor.runs import machine
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import replacing, write_atomically, write_record

ROOT = Path(__file__).parent.parent


def torchdoctor(folder: Path, *arguments: str, **more) -> subprocess.CompletedProcess:
    return commands.torchdoctor(*arguments, cwd=folder, **more)


def refused(folder: Path, *arguments: str, **more) -> str:
    """The one sentence of a command that ends with code 2 and leaves every file as it was."""
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    result = torchdoctor(folder, *arguments, **more)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.startswith("torchdoctor: ")
    assert len(result.stderr.strip().splitlines()) == 1
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    return result.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two traces, in a folder and beside it, a report, and files of the user's own."""
    (tmp_path / "ranks").mkdir()
    for rank, name in enumerate(("ranks/rank0.json", "ranks/rank1.json", "ok.json", "other.json")):
        information = {"backend": "nccl", "rank": rank, "world_size": 2}
        trace = synthetic.every_branch().text(distributedInfo=information)
        (tmp_path / name).write_bytes(trace)
    (tmp_path / "trace.gz").write_bytes(gzip.compress(trace))
    (tmp_path / "notes.txt").write_text("precious")
    (tmp_path / "page.html").write_text("<!doctype html><title>my page</title>")
    (tmp_path / "config.json").write_text('{"schema_version": 1, "batch_size": 8}')
    write_record(samples.loader_bound(), tmp_path / "report.json")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", "ranks", "--output", "ranks/rank0.json"],
        ["diagnose", "ranks", "--format", "html", "--output", "ranks/rank0.json"],
        ["diagnose", "ranks", "--annotate", "ranks/rank0.json"],
        ["diagnose", "ok.json", "--output", "ok.json"],
        ["diagnose", "--output", "other.json", "ok.json"],
        ["diagnose", "--output", "config.json", "ok.json"],
        ["diagnose", "--format", "json", "--output", "notes.txt", "ok.json"],
        ["diagnose", "ok.json", "--output", "trace.gz"],
        ["diagnose", "ok.json", "--output", "page.html"],
        ["diagnose", "ok.json", "--annotate", "trace.gz"],
        ["diagnose", "ok.json", "--annotate", "report.json"],
        ["diagnose", "ok.json", "--annotate", "new.json", "--output", "new.json"],
        ["compare", "ok.json", "report.json", "--output", "ok.json"],
        ["compare", "ok.json", "report.json", "--output", "report.json"],
        ["compare", "ok.json", "other.json", "--output", "report.json"],
        ["report", "report.json", "--format", "text", "--output", "report.json"],
        ["report", "report.json", "--output", "notes.txt"],
        ["report", "report.json", "--output", "report.json"],
        ["explain", "data-wait", "--output", "report.json"],
        ["explain", "data-wait", "--output", "config.json"],
        ["env", "--output", "notes.txt"],
        ["agent-guide", "--output", "notes.txt"],
        ["patch", "report.json", "--output", "notes.txt"],
        ["run", "--output", "ok.json", "no_such.py"],
        ["gate", "--against", "main", "--output", "new.json", "no_such.py"],
        ["watch", "--output", "new.html", "no_such.py"],
    ],
    ids=" ".join,
)
def test_no_file_of_the_users_is_replaced(folder: Path, arguments: list[str]) -> None:
    named = arguments[-1] if "--" in arguments[-2] and arguments[-1] != "no_such.py" else ""
    assert named in refused(folder, *arguments)


def test_the_only_copy_of_a_trace_is_not_annotated_over(folder: Path) -> None:
    first = ["diagnose", "ranks/rank0.json", "--annotate", "ranks/copy.json"]
    assert torchdoctor(folder, *first).returncode == 0
    again = ["diagnose", "ranks", "--annotate", "ranks/copy.json"]
    assert torchdoctor(folder, *again).returncode == 0
    for rank in (0, 1):
        (folder / "ranks" / f"rank{rank}.json").unlink()
    assert "ranks/copy.json" in refused(folder, *again)


def test_what_was_written_before_is_written_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It starts the Python that has torch, which finds the same each time.
    monkeypatch.setattr(machine, "seen_environment", functools.cache(machine.seen_environment))
    commands = [
        ["diagnose", "ok.json", "--output", "a.json", "--annotate", "a.gz"],
        ["compare", "ok.json", "report.json", "--output", "c.json"],
        ["env", "--output", "e.json"],
    ]
    for ending in ("html", "md", "sarif", "txt"):
        commands.append(["report", "report.json", "--output", f"a.{ending}"])
    for arguments in [*commands, *commands]:
        result = torchdoctor(folder, *arguments)
        assert result.returncode == 0, result.stderr
        assert result.stdout == ""
    (folder / "empty").write_text("")
    reformatted = json.dumps(json.loads((folder / "a.json").read_text()), sort_keys=True)
    (folder / "a.json").write_text(reformatted)
    result = torchdoctor(folder, "diagnose", "ok.json", "--output", "a.json")
    assert result.returncode == 0, result.stderr
    assert torchdoctor(folder, "diagnose", "ok.json", "--output", "empty").returncode == 0


def test_each_kind_of_file_is_known_by_what_it_holds(tmp_path: Path) -> None:
    run = samples.loader_bound()
    writers: dict[str, Callable[[Path], object]] = {
        "report": lambda path: write_record(run, path),
        "HTML page": lambda path: path.write_text(rendered(run, "html")),
        "Markdown": lambda path: path.write_text(rendered(run, "markdown")),
        "SARIF file": lambda path: path.write_text(rendered(run, "sarif")),
        "text": lambda path: path.write_text(rendered(run, "text")),
    }
    for kind, write in writers.items():
        path = tmp_path / "file"
        write(path)
        check_written({kind: path})
        for other in {*writers, "comparison", "annotated trace"} - {kind}:
            with pytest.raises(UsageError, match="that torchdoctor wrote"):
                check_written({other: path})


def test_a_huge_file_is_not_read_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.write(b'{"schema_version": 1, "traceEvents": [')
        file.truncate(1 << 42)
    for kind in ("report", "annotated trace", "HTML page"):
        with pytest.raises(UsageError, match="that torchdoctor wrote"):
            check_written({kind: path})


@pytest.mark.parametrize("place", ["/dev/null", "pipe"])
def test_what_is_no_file_may_be_written_to(place: str, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    reader = subprocess.Popen(["cat", folder / "pipe"], stdout=subprocess.PIPE)
    result = torchdoctor(folder, "diagnose", "ok.json", "--format", "json", "--output", place)
    assert result.returncode == 0, result.stderr
    if place != "pipe":
        (folder / "pipe").write_text("")
    written, _ = reader.communicate(timeout=600)
    assert place != "pipe" or '"schema_version"' in written.decode()


def test_a_copy_named_otherwise_than_its_rank_is_known_and_written_again(folder: Path) -> None:
    for rank, file in enumerate(sorted((folder / "ranks").iterdir())):
        file.write_bytes(synthetic.every_branch(step=1000.0 + 100.0 * rank).text())
    arguments = ["diagnose", "ranks", "--details", "--annotate", "ranks/copy.json"]
    assert torchdoctor(folder, *arguments).returncode == 0
    result = torchdoctor(folder, *arguments, "--format", "json")
    assert result.returncode == 0, result.stderr
    told = {remark["fact"]: remark["values"] for remark in json.loads(result.stdout)["remarks"]}
    assert Path(told["file-annotated"]["path"]).name == "copy.json"


def test_a_name_that_no_file_can_have_is_one_sentence(folder: Path) -> None:
    assert "Cannot write" in refused(folder, "diagnose", "ok.json", "--output", "a" * 300)


@pytest.mark.parametrize("how", [">", ">>"])
def test_standard_output_that_is_a_file_keeps_what_is_in_it(how: str, folder: Path) -> None:
    (folder / "log").write_text("before\n" * 9)
    words = "diagnose ok.json --format json --output /dev/stdout"
    command = f"{sys.executable} -m torchdoctor.cli.front {words} {how} log"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, check=False, timeout=600
    )
    assert result.returncode == 0
    text = (folder / "log").read_text()
    assert text.startswith("before\n" * 9 if how == ">>" else "{")
    assert '"schema_version"' in text


def test_a_dash_is_no_file() -> None:
    with pytest.raises(UsageError, match="/dev/stdout"):
        check_written({"report": Path("-")})


def test_what_a_killed_process_left_beside_a_file_goes_with_the_next(tmp_path: Path) -> None:
    """`kill -9` in `patch --apply` left a part of a source file beside it for ever."""
    driver = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from torchdoctor.schema.record_files import replacing\n"
        "with replacing(Path(sys.argv[1])) as file:\n"
        "    file.write(b'a part')\n"
        "    file.flush()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    target = tmp_path / "train.py"
    target.write_text("whole")
    assert subprocess.run([sys.executable, "-c", driver, str(target)]).returncode != 0
    others = [tmp_path / f".torchdoctor-{'0' * 16}.tmp", tmp_path / ".torchdoctor-mine.tmp"]
    os.mkfifo(others[0])
    others[1].write_text("no name of ours")
    left = set(tmp_path.iterdir()) - {target, *others}
    assert len(left) == 1
    with replacing(tmp_path / "other") as file:
        file.write(b"goes on")
        write_atomically(target, b"new")
    assert target.read_text() == "new"
    assert (tmp_path / "other").read_text() == "goes on"
    assert set(tmp_path.iterdir()) == {target, *others, tmp_path / "other"}


def test_files_that_are_written_at_the_same_moment_leave_each_other_alone(tmp_path: Path) -> None:
    """A file that was made and not locked yet looks as if it had been left behind."""

    def write(number: int) -> None:
        for _ in range(60):
            write_atomically(tmp_path / str(number), bytes([number]) * 100)

    with ThreadPoolExecutor(8) as together:
        list(together.map(write, range(8)))
    assert {x.name: x.read_bytes() for x in tmp_path.iterdir()} == {
        str(number): bytes([number]) * 100 for number in range(8)
    }
