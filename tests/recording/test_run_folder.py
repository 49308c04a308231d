"""The folder of a run is its own, whoever begins one in the same second."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from torchdoctor.launch.run_folder import new_run_folder
from torchdoctor.schema.errors import UsageError

MAKER = """
import sys
from datetime import datetime
from pathlib import Path
from torchdoctor.launch.run_folder import new_run_folder
from torchdoctor.schema.errors import UsageError
sys.stdin.readline()
output = Path(sys.argv[1]) if sys.argv[1:] else None
try:
    print(new_run_folder(output, ".", datetime(2026, 1, 2, 3, 4, 5)))
except UsageError:
    print("refused")
"""


def at_once(folder: Path, count: int, *arguments: str) -> list[str]:
    """Return what so many processes say that make a folder at the same moment."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [process.communicate(timeout=60)[0].strip() for process in processes]


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = at_once(tmp_path, 8)
    assert len(set(folders)) == 8 and "refused" not in folders
    assert sorted(Path(x).name for x in folders)[0] == "20260102-030405"


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_was_asked_for_is_one_run_s(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "asked"
    if there:
        folder.mkdir()
    said = at_once(tmp_path, 6, str(folder))
    assert said.count(str(folder)) == 1 and said.count("refused") == 5


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path, tmp_path / "file"):
        with pytest.raises(UsageError, match="--output"):
            new_run_folder(output, str(tmp_path), datetime.now().astimezone())
