"""What is piped into a run: kept for each launch, bounded, private, never waited for in vain."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from torchdoctor.launch import kept_input

KEEPER = """
import sys
from pathlib import Path
from torchdoctor.launch import kept_input
from torchdoctor.schema.errors import UsageError
kept_input.MOST_BYTES, kept_input.GOES_ON_WITHIN_S = 1 << 20, 1.0
try:
    kept = kept_input.keep_stdin(Path(sys.argv[1]))
except UsageError as error:
    print("refused", error)
    sys.exit(2)
print(kept.path or "", kept.doubt is not None, sep="\\n")
"""


def start(folder: Path, given: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(folder)], stdin=given, stdout=subprocess.PIPE, text=True
    )


def kept(folder: Path, given: int) -> tuple[str, bool]:
    with start(folder, given) as process:
        path, doubted = process.communicate(timeout=60)[0].split("\n")[:2]
    assert process.returncode == 0
    return path, doubted == "True"


def piped(folder: Path, data: bytes, *, closed: bool) -> tuple[str, bool]:
    reader, writer = os.pipe()
    try:
        os.write(writer, data)
        if closed:
            os.close(writer)
        return kept(folder, reader)
    finally:
        os.close(reader)
        if not closed:
            os.close(writer)


def test_what_was_piped_in_is_for_its_owner_alone(tmp_path: Path) -> None:
    path, doubted = piped(tmp_path, b"a\nb\n", closed=True)
    assert Path(path).read_bytes() == b"a\nb\n" and not doubted
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600


def test_a_pipe_that_stays_open_is_not_waited_for(tmp_path: Path) -> None:
    path, doubted = piped(tmp_path, b"a\n", closed=False)
    assert Path(path).read_bytes() == b"a\n" and doubted
    Path(path).unlink()
    assert piped(tmp_path, b"", closed=False) == ("", False)
    assert piped(tmp_path, b"", closed=True) == ("", False)


def test_input_without_end_is_refused_before_it_fills_anything(tmp_path: Path) -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        with start(tmp_path, endless.stdout.fileno()) as process:
            said = process.communicate(timeout=60)[0]
        endless.kill()
    assert process.returncode == 2 and said.startswith("refused") and "< FILE" in said
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_read_where_it_lies_and_the_rest_of_one_is_copied(tmp_path: Path) -> None:
    given, folder = tmp_path / "given", tmp_path / "run"
    folder.mkdir()
    given.write_bytes(b"first\n" + b"x" * (3 << 20))
    descriptor = os.open(given, os.O_RDONLY)
    try:
        assert kept(folder, descriptor) == (str(given), False)
        os.lseek(descriptor, 6, os.SEEK_SET)
        path, _ = kept(folder, descriptor)
    finally:
        os.close(descriptor)
    assert Path(path).read_bytes() == b"x" * (3 << 20)


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_gives_nothing(tmp_path: Path, device: str) -> None:
    descriptor = os.open(device, os.O_RDONLY)
    try:
        assert kept(tmp_path, descriptor) == ("", False)
    finally:
        os.close(descriptor)


def test_the_bounds_are_those_that_are_documented() -> None:
    assert kept_input.MOST_BYTES == 64 << 20
