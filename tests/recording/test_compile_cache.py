"""What torch.compile made is kept for the next run of the program, within a limit."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from torchdoctor.launch import compile_cache
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.pairs.record import Recorder
from torchdoctor.words import Workload


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
    first.close()
    second = recorder(home)
    assert (cache_of(second) / "kernel.so").read_text() == "code"
    assert first.doubts == [] and "second start" in second.doubts[0]
    assert cache_of(recorder(home, python="2.7")) != cache_of(first), "of another torch"
    other = recorder(home, script="other.py")
    assert cache_of(other) == cache_of(first), "what it learnt of the machine serves all programs"
    assert other.doubts == [], "its own code is compiled anew"


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
