"""What `torchdoctor diagnose` is given: folders with odd files in them, odd names, no input."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from compared_pairs import synthetic

from torchdoctor.schema.errors import UsageError
from torchdoctor.trace.ranks import read_ranks

ROOT = Path(__file__).parent.parent


def torchdoctor(folder: Path, *arguments: str, before: str = "") -> subprocess.CompletedProcess:
    """Runs it by a shell, so that pipes and descriptors are as users make them."""
    command = shlex.join([sys.executable, "-m", "torchdoctor.cli.front", *arguments])
    return subprocess.run(
        ["bash", "-c", before.replace("torchdoctor", command) or command],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        check=False,
        timeout=600,
    )


def write(folder: Path, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(synthetic.every_branch().text())
    return path


def says_one_sentence(result: subprocess.CompletedProcess) -> str:
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.startswith("torchdoctor: ")
    assert len(result.stderr.strip().splitlines()) == 1
    return result.stderr


@pytest.mark.smoke
def test_a_pipe_or_socket_in_a_folder_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.json")
    os.mkfifo(tmp_path / "b.json")
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("c.json")
    result = torchdoctor(tmp_path, "diagnose", ".")
    assert result.returncode == 0, result.stderr
    (tmp_path / "a.json").unlink()
    assert "holds no .json" in says_one_sentence(torchdoctor(tmp_path, "diagnose", "."))


def test_a_closed_standard_input_is_one_sentence(tmp_path: Path) -> None:
    result = torchdoctor(tmp_path, "diagnose", "-", before="torchdoctor <&-")
    assert "standard input" in says_one_sentence(result)


def test_a_link_beside_its_trace_is_the_same_trace(tmp_path: Path) -> None:
    for name in ("run1.json", "run2.json"):
        write(tmp_path, name)
    (tmp_path / "latest.json").symlink_to("run2.json")
    (tmp_path / "loop.json").symlink_to("loop.json")
    traces, doubts = read_ranks([str(tmp_path)])
    assert [Path(one.statistics.path).name for one in traces] == ["run1.json", "run2.json"]
    assert [doubt for doubt in doubts if "loop.json" not in doubt] == []


@pytest.mark.parametrize("second", ["run1.json", "latest.json", "../traces/run1.json", "."])
def test_a_trace_that_is_named_twice_is_said_with_its_name(second: str, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    write(folder, "run1.json")
    (folder / "latest.json").symlink_to("run1.json")
    error = says_one_sentence(torchdoctor(folder, "diagnose", "run1.json", second))
    assert "run1.json" in error and "twice" in error


def test_an_empty_name_is_no_folder(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(UsageError, match="empty"):
        read_ranks([str(path), ""])
    assert "empty" in says_one_sentence(torchdoctor(tmp_path, "diagnose", ""))
    assert "empty" in says_one_sentence(torchdoctor(tmp_path, "compare", path.name, ""))


def test_what_is_printed_to_reproduce_it_works(tmp_path: Path) -> None:
    write(tmp_path, "-lead.json")
    result = torchdoctor(tmp_path, "diagnose", "--details", "--", "-lead.json")
    assert result.returncode == 0, result.stderr
    [command] = [line for line in result.stdout.splitlines() if "$ torchdoctor" in line]
    words = shlex.split(command)[2:]
    assert torchdoctor(tmp_path, *words).returncode == 0


@pytest.mark.parametrize(
    ("option", "place", "advice"),
    [
        ("--annotate", "/dev/full", "free space"),
        ("--output", "/dev/full", "another place"),
        ("--tensorboard", "trace.json", "name a folder"),
        ("--tensorboard", "trace.json/logs", "name another"),
        ("--tensorboard", "a" * 300, "name another"),
    ],
)
def test_what_cannot_be_written_says_what_to_do(
    option: str, place: str, advice: str, tmp_path: Path
) -> None:
    before = write(tmp_path).read_bytes()
    error = says_one_sentence(torchdoctor(tmp_path, "diagnose", "trace.json", option, place))
    assert place in error
    assert advice in error
    assert (tmp_path / "trace.json").read_bytes() == before
