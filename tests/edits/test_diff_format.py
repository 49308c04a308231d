"""The diff is one that git applies, whatever stands in a file and whatever it is called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torchdoctor.edits import KeywordEdit, StatementEdit
from torchdoctor.edits.diff import edited_files, unified_diff


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


def test_a_script_from_the_folder_above_is_one_file(tmp_path: Path) -> None:
    """Started as `../train.py`: two diffs of one file do not apply one after the other."""
    (tmp_path / "run").mkdir()
    script = tmp_path / "train.py"
    script.write_text("import torch\nDataLoader(d)\n")
    edits = [
        StatementEdit(file=f"{tmp_path}/run/../train.py", statement="torch.set_num_threads(2)"),
        KeywordEdit(
            file=str(script), line=2, callee="DataLoader", keyword="num_workers", value="2"
        ),
    ]
    text = unified_diff(edits, tmp_path)
    assert text is not None and text.count("+++") == 1
    assert list(edited_files(edits) or {}) == [str(script)]
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=text.encode(), check=True)
    assert "num_workers=2" in script.read_text() and "set_num_threads(2)" in script.read_text()


def test_the_folder_above_a_link_is_that_of_its_target(tmp_path: Path) -> None:
    for name in ("far/run", "near"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name).parent.joinpath("train.py").write_text(f"import torch  # {name}\n")
    (tmp_path / "near" / "run").symlink_to(tmp_path / "far" / "run")
    (tmp_path / "near" / "train.py").write_text("import torch  # another\n")
    name = f"{tmp_path}/near/run/../train.py"
    text = unified_diff([StatementEdit(file=name, statement="torch.f()")], tmp_path)
    assert text is not None and "b/far/train.py" in text
