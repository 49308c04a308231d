"""What a program prints fills no disk: the first and the last five megabytes are kept."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest

from torchdoctor.launch import kept_output
from torchdoctor.launch.kept_output import KEPT_BYTES, KeptOutput

LINE = b"x" * 99 + b"\n"
MEGABYTES_10 = LINE * 100_000


def print_more(file: IO[bytes], output: KeptOutput, times: int) -> None:
    """Print 10 MB again and again, while the launch is looked at."""
    for _ in range(times):
        file.write(MEGABYTES_10)
        file.flush()
        output.bound()


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def check(path: Path, printed: int) -> None:
    text = path.read_bytes()
    assert text.startswith(b"first line\n") and text.endswith(b"last line\n")
    assert len(text) < 2 * KEPT_BYTES + 200
    [notice] = [line for line in text.split(b"\n") if b"left out" in line]
    left_out = int(notice.split()[1])
    assert left_out + len(text) - len(notice) - 2 == printed


def test_the_middle_is_freed_while_the_program_prints(tmp_path: Path) -> None:
    path = tmp_path / "output.txt"
    output = KeptOutput(path)
    with path.open("wb") as file:
        file.write(b"first line\n")
        print_more(file, output, 12)
        assert on_disk(path) < 30_000_000  # of 120 that were printed
        file.write(b"last line\n")
    output.close()
    check(path, 11 + 12 * len(MEGABYTES_10) + 10)


def test_where_files_have_no_holes_what_comes_last_is_kept_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_output, "_punch", lambda *_: False)
    path = tmp_path / "output.txt"
    output = KeptOutput(path)
    with path.open("wb") as file:
        file.write(b"first line\n")
        print_more(file, output, 3)
        assert on_disk(path) < 30_000_000
        file.write(b"last line\n")
    output.close()
    text = path.read_bytes()
    assert text.startswith(b"first line\n") and text.endswith(b"last line\n")
    assert b"left out" in text and b"\0" not in text


def test_a_program_that_ended_before_it_was_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "output.txt"
    path.write_bytes(b"first line\n" + MEGABYTES_10 * 3 + b"last line\n")
    KeptOutput(path).close()
    check(path, 11 + 3 * len(MEGABYTES_10) + 10)


def test_little_output_stays_as_it_is_but_for_secrets(tmp_path: Path) -> None:
    path = tmp_path / "output.txt"
    path.write_bytes(MEGABYTES_10 + b"token=abcdefgh\n")
    KeptOutput(path).close()
    assert path.read_bytes() == MEGABYTES_10 + b"token=abcdefgh\n"
    KeptOutput(path).close(["abcdefgh", "x"])
    assert path.read_bytes() == MEGABYTES_10 + b"token=***\n"
    KeptOutput(tmp_path / "none.txt").close()
