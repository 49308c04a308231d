"""A test that passes only when it is run again is listed, and too many of them fail the suite."""

import subprocess
import sys
from pathlib import Path

import flaky
import pytest

PROGRAM = """
import pathlib, pytest
@pytest.mark.xdist_group("trials")
@pytest.mark.parametrize("number", range({count}))
def test_sometimes(number):
    ran = pathlib.Path(f"{{number}}.txt")
    first = not ran.exists()
    ran.write_text("")
    assert not first, f"failure {{number}} of the first run"
def test_always(): pass
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("count", "code"), [(flaky.MOST, 0), (flaky.MOST + 1, 1)])
def test_what_passes_when_run_again_is_listed_with_its_first_failure(
    count: int, code: int, tmp_path: Path
) -> None:
    conftest = (Path(__file__).parent / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "flaky.py").write_text(Path(flaky.__file__).read_text())
    (tmp_path / "test_program.py").write_text(PROGRAM.format(count=count))
    options = ["-n", "1", "--dist", "loadgroup", "-o", "markers=xdist_group"]
    assert run(tmp_path, *options).returncode == 1
    again = run(tmp_path, "-v", "--last-failed", "--again")
    assert again.returncode == code, again.stdout
    assert again.stdout.count("FLAKY test_program.py::test_sometimes[0]\n") == 1
    assert "failure 0 " in again.stdout
    assert "test_always" not in again.stdout
    assert (f"{count} tests are flaky" in again.stdout) == bool(code)


def test_the_group_is_no_part_of_a_tests_name() -> None:
    assert flaky.without_group("a.py::test_b[x@y]@trials") == "a.py::test_b[x@y]"
    assert flaky.without_group("a.py::test_b") == "a.py::test_b"
