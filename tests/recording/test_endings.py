"""Why a launch ended comes as a fact with its figures, and each such fact can be told."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launching import launch_script

from torchdoctor.launch.endings import by_layer, how_it_ended, said_besides, with_ending
from torchdoctor.launch.launch import LaunchResult, RunningLaunch
from torchdoctor.launch.layer_limits import Room
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.reports import remarks
from torchdoctor.schema import Evidence, LaunchTiming, within

FULL = Room(folder="/var/{tmp}", size_bytes=8 << 30, free_bytes=1 << 20)
NOTHING_MEASURED = LaunchTiming(ended="failed")


def ending(result: LaunchResult) -> tuple[str, Evidence]:
    timing = with_ending(NOTHING_MEASURED, result, None)
    assert timing.why is not None
    return timing.ended, timing.why


def launched(folder: Path, source: str, **options: Any) -> LaunchResult:
    with Sandbox.choose("none") as sandbox:
        return launch_script(folder, source, sandbox, **options)


@pytest.mark.parametrize(
    ("source", "ended", "ident", "values"),
    [
        (
            "raise SystemExit('no {data} [at all]')",
            "failed",
            "ended-with-code",
            {"exit_code": 1, "last_line": "no {data} [at all]"},
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
            "failed",
            "ended-with-code",
            {"exit_code": -signal.SIGTERM, "last_line": None},
        ),
        ("raise MemoryError", "out-of-memory", "ran-out-of-memory", {}),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "out-of-memory",
            "killed-for-memory",
            {"exit_code": -signal.SIGKILL},
        ),
    ],
)
def test_how_a_program_ended_by_itself(
    tmp_path: Path, source: str, ended: str, ident: str, values: dict[str, Any]
) -> None:
    how, why = ending(launched(tmp_path, source))
    assert (how, why.fact, why.values) == (ended, ident, values)
    last_line = values.get("last_line") or ""
    assert last_line in remarks.sentence(why), "braces of the program's own are no template's"


def test_a_launch_that_is_not_done_in_time_says_how_long_it_had(tmp_path: Path) -> None:
    result = launched(tmp_path, "import time; time.sleep(600)", timeout_s=0.5)
    how, why = ending(result)
    assert (how, why.fact) == ("timed-out", "window-not-finished")
    assert why.values == {"wall_s": result.wall_s} and remarks.sentence(why)


def test_a_launch_that_was_stopped_has_no_exit_code(tmp_path: Path) -> None:
    """Its row said that the program had ended, with exit code None."""
    source = "import time; print('waits', flush=True); time.sleep(600)"

    def has_begun(running: RunningLaunch) -> bool:
        return b"waits" in (running.folder / "output.txt").read_bytes()

    result = launched(tmp_path, source, poll=has_begun)
    how, why = ending(result)
    assert (how, why.fact) == ("failed", "stopped-unmeasured")
    assert why.values == {"last_line": "waits", "layer": None} and remarks.sentence(why)
    assert "None" not in how_it_ended(result)


@pytest.mark.parametrize(
    ("changes", "ident"),
    [
        ({"full_layer": FULL}, "scratch-folder-full"),
        ({"full_layer": replace(FULL, folder="")}, "scratch-memory-full"),
        ({"sandbox": "landlock"}, "maybe-denied-by-sandbox"),
    ],
)
def test_a_limit_of_the_layer_is_told_alike_by_an_error_and_by_a_report(
    tmp_path: Path, changes: dict[str, Any], ident: str
) -> None:
    result = replace(
        launched(tmp_path, "raise PermissionError(13, 'Permission denied')"), **changes
    )
    layer = by_layer(result)
    assert layer is not None and layer.fact == ident
    _, why = ending(result)
    assert why.values == {"exit_code": 1, "layer": within(layer)}
    assert remarks.sentence(layer) == said_besides(result)
    assert remarks.sentence(why).endswith(said_besides(result))
