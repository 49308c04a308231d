"""Tests share the machine: three workers more than cores, and whoever needs its budget goes first.

A run that is to end within its budget waits for most of it and leaves its core idle; but when it
computes, the others must give way, or it measures them.
"""

from __future__ import annotations

import compileall
import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from flaky import FirstFailures

ROOT = Path(__file__).parent.parent
_GIVES_WAY = 10  # of niceness
_AT_START = os.nice(0) if hasattr(os, "nice") else 0

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so, and every program under test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads of a program under test sleep while they wait for each other. By themselves they spin, and
# with more of them than cores for seconds: a third of what a whole run of the tests computes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `make quick` and `make test` set."""
    parser.addoption(
        "--quick", action="store_true", help="skip each slow test, and each that starts a program"
    )
    parser.addoption(
        "--again",
        action="store_true",
        help="with --last-failed: list what passes this time as flaky",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep the first failure of each test, or compare with those kept."""
    if hasattr(config, "workerinput"):
        return
    # As pip does: else each process of ours compiles our sources where Python may write nothing.
    compileall.compile_dir(ROOT / "torchdoctor", quiet=2)
    compileall.compile_dir(ROOT / "tests", rx=re.compile(r"/(test_\w+|conftest)\.py$"), quiet=2)
    if config.getoption("numprocesses", None) and hasattr(os, "fork"):
        _rewrite_assertions(config)
    cache = getattr(config, "cache", None)
    if cache is not None:
        plugin = FirstFailures(cache, config.getoption("--again"))
        config.pluginmanager.register(plugin, "first-failures")


def _rewrite_assertions(config: pytest.Config) -> None:
    """Store each test as pytest rewrites it: else every worker rewrites them all, for 7 seconds."""
    tests = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "tests").rglob("conftest.py")]
    child = os.fork()
    try:
        for path in tests[::2] if child else tests[1::2]:
            with contextlib.suppress(AttributeError):  # of another pytest, which does without it
                stored = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
                stored.parent.mkdir(exist_ok=True)
                if rewrite._read_pyc(path, stored) is None:
                    stat, code = rewrite._rewrite_test(path, config)
                    rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, stored)
    finally:
        if not child:
            os._exit(0)
    os.waitpid(child, 0)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing that is imported or collected goes away: Python need not look for what did.

    It would look again and again through all of it, here and while the tests run.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the slow tests in a quick run."""
    if not config.getoption("--quick"):
        return
    slow = [item for item in items if _is_slow(item)]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not _is_slow(item)]


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None and not _is_smoke(item)


def _is_smoke(item: pytest.Item) -> bool:
    return item.get_closest_marker("smoke") is not None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """In a quick run, skip a test where it would start Python, unless it is a smoke test."""
    if item.config.getoption("--quick"):
        start = _START if _is_smoke(item) else _skip_python
        subprocess.Popen.__init__ = start  # type: ignore[method-assign]


_START = subprocess.Popen.__init__


def _skip_python(process: Any, args: Any, *more: Any, **named: Any) -> None:
    words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
    if any(_starts_python(str(word)) for word in words):
        pytest.skip("starts a program: not part of a quick run")
    _START(process, args, *more, **named)


def _starts_python(word: str) -> bool:
    return sys.executable in word or Path(word).name in ("python", "torchdoctor", "torchrun")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: a quick run waits for no program, and a worker imports for 8 seconds."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (cores or 1) + (0 if config.getoption("--quick") else 3)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A worker gives way from its first test on that needs no budget.

    Niceness cannot be taken back, and need not: the largest group comes first (`loadgroup`).
    """
    if "PYTEST_XDIST_WORKER" not in os.environ or not hasattr(os, "nice"):
        return
    group = item.get_closest_marker("xdist_group")
    if (group is None or "trials" not in group.args) and os.nice(0) == _AT_START:
        os.nice(_GIVES_WAY)


@pytest.fixture(autouse=True)
def no_compile_cache_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch writes the folder of its cache into the environment of whoever compiles, and a launch
    keeps to a folder that stands there.
    """
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHDOCTOR_COMPILE_CACHE", "0")
