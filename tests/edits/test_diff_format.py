"""The diff is one that git applies, whatever stands in a file and whatever it is called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torchdoctor.edits import KeywordEdit
from torchdoctor.edits.diff import unified_diff


def applied(folder: Path, script: Path, line: int) -> str:
    """What the file holds once git has applied the diff that sets the workers."""
    edit = KeywordEdit(
        file=str(script), line=line, callee="DataLoader", keyword="num_workers", value="2"
    )
    text = unified_diff([edit], folder)
    assert text is not None
    subprocess.run(["git", "apply", "-"], cwd=folder, input=text.encode(), check=True)
    return script.read_bytes().decode()


@pytest.mark.parametrize("sign", ["\f", "\u2028", "\x85", "\x1c", "\v"])
def test_only_line_feeds_end_the_lines_of_a_diff(tmp_path: Path, sign: str) -> None:
    script = tmp_path / "train.py"
    source = f"a = 1  # {sign} page\nb = 2\nDataLoader(d)\n# {sign}\nc = 3  # {sign}"
    script.write_bytes(source.encode())
    assert applied(tmp_path, script, 3) == source.replace("(d)", "(d, num_workers=2)")


def test_pages_and_windows_line_ends(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    source = "import torch\r\n\f\r\nDataLoader(d)\r\n\f\r\nx = 1\r\n"
    script.write_bytes(source.encode())
    assert applied(tmp_path, script, 3) == source.replace("(d)", "(d, num_workers=2)")


def test_a_byte_order_mark_stays(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes("\ufeffDataLoader(d)\n".encode())
    assert applied(tmp_path, script, 1) == "\ufeffDataLoader(d, num_workers=2)\n"
    done = KeywordEdit(
        file=str(script), line=1, callee="DataLoader", keyword="num_workers", value="2"
    )
    assert unified_diff([done], tmp_path) is None


@pytest.mark.parametrize(
    "name",
    [
        "my train.py",
        "träin.py",
        'a"b.py',
        "a\\b.py",
        "a\tb.py",
        "a\nb.py",
        os.fsdecode(b"s\xe9.py"),
    ],
)
def test_names_that_git_quotes(tmp_path: Path, name: str) -> None:
    (tmp_path / "a dir").mkdir()
    for script in (tmp_path / name, tmp_path / "a dir" / name):
        try:
            script.write_text("DataLoader(d)\n")
        except OSError:
            pytest.skip("this file system does not take the name")
        assert applied(tmp_path, script, 1) == "DataLoader(d, num_workers=2)\n"
