"""What torch.compile made is kept for the next run of the program, within a limit."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchdoctor.bench import record
from torchdoctor.bench.record import Recorder
from torchdoctor.launch import compile_cache
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.schema import AppliedFix, LaunchTiming, Workload


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(compile_cache.LIMIT)
    monkeypatch.setattr(compile_cache, "versions", lambda python: {"torch": python[-3:]})
    return tmp_path


def recorder(folder: Path, python: str = "2.6", script: str = "train.py") -> Recorder:
    workload = Workload(command=[script], cwd=str(folder), python=python, script=script)
    run = folder / f"run-{len(list(folder.iterdir()))}"
    return Recorder(workload, run, Sandbox.choose("none", run, workload), 0, None, 60.0)


def cache_of(recorder: Recorder) -> Path:
    return recorder._program.compile_cache


def test_the_next_run_of_a_program_finds_what_was_compiled(home: Path) -> None:
    first = recorder(home)
    (cache_of(first) / "kernel.so").write_text("code")
    assert not compile_cache.is_next_run(first.workload, cache_of(first))
    first.close()
    second, other = recorder(home), recorder(home, script="other.py")
    assert (cache_of(second) / "kernel.so").read_text() == "code"
    assert compile_cache.is_next_run(second.workload, cache_of(second))
    assert cache_of(recorder(home, python="2.7")) != cache_of(first), "of another torch"
    assert cache_of(other) == cache_of(first), "what it learnt of the machine serves all programs"
    assert not compile_cache.is_next_run(other.workload, cache_of(other)), "it compiles anew"


def test_what_cannot_be_noted_ends_no_run(home: Path) -> None:
    """A file in place of the notes' folder was said to be a full disk, and nothing was measured."""
    run = recorder(home)
    (cache_of(run) / "programs").write_text("")
    assert not compile_cache.is_next_run(run.workload, cache_of(run))


@pytest.mark.parametrize("compiled", [True, False])
def test_what_was_compiled_before_is_said_where_something_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """It was said of runs that had compiled nothing."""
    monkeypatch.setattr(compile_cache, "is_next_run", lambda workload, folder: True)
    details = {"compile_s": 20.0} if compiled else {}
    fixes = [AppliedFix(fix="some", state="applied", details=details)]
    timing = LaunchTiming(ended="measured", fixes=fixes)
    monkeypatch.setattr(record, "read_launch", lambda *_: timing)
    run = recorder(tmp_path)
    monkeypatch.setattr(run, "_launch", lambda *_: SimpleNamespace(ended="exited"))
    for _ in range(2):
        run.time(LaunchSpec(name="some"), 1.0)
    assert len(run.doubts) == compiled


def test_what_was_used_longest_ago_goes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compile_cache.LIMIT, "0.00001")
    run = recorder(home)
    kernels = {name: cache_of(run) / name / "kernel.so" for name in ("old", "read", "new")}
    for kernel in kernels.values():
        kernel.parent.mkdir()
        kernel.write_bytes(bytes(6000))
    os.utime(kernels["old"], (1, 1))
    os.utime(kernels["read"], (time.time(), 1))
    run.close()
    left = [name for name in kernels if kernels[name].exists()]
    assert left == ["read", "new"], "what was used within the hour another run may still need"


@pytest.mark.parametrize("limit", ["0", "off"])
def test_nothing_is_kept_if_the_user_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setenv(compile_cache.LIMIT, limit)
    run = recorder(home)
    assert cache_of(run).is_relative_to(run.folder) and not (home / "cache").exists()
    run.close()
    assert not cache_of(run).exists()


def test_a_cache_folder_that_cannot_be_written_is_done_without(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    run = recorder(home)
    assert cache_of(run).is_relative_to(run.folder)
    run.close()


def test_a_cache_folder_on_a_full_disk_is_done_without(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program failed for want of room in a folder that without torchdoctor it does not use."""
    full = SimpleNamespace(total=1 << 40, used=1 << 40, free=1 << 20)
    monkeypatch.setattr(compile_cache.shutil, "disk_usage", lambda folder: full)
    run = recorder(home)
    assert cache_of(run).is_relative_to(run.folder)
    run.close()
