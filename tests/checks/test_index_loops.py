"""Lines of one loop through a tensor are counted once: each has the time of the whole turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.schema import process, tensor_call

SOURCE = """\
def advantages_of(rewards, values):
    for e in range(16):
        last = 0.0
        for t in reversed(range(128)):
            following = values[t + 1, e] if t + 1 < 128 else 0.0
            delta = rewards[t, e] + following - values[t, e]
            last = delta + last
            advantages[t, e] = last
    return [advantages[e] for e in range(16)]
"""


def share_of(folder: Path, *lines: tuple[int, float]) -> float | None:
    script = folder / "train.py"
    script.write_text(SOURCE)
    calls: list[dict[str, Any]] = [
        {
            **tensor_call("element", "__getitem__"),
            "location": {"file": str(script), "line": line, "function": "advantages_of"},
            "calls_per_step": calls,
            "host_s": 0.02,
        }
        for line, calls in lines
    ]
    of = recording({"steps": {"mean_s": 0.1}, **process(tensor_calls=calls)})
    [finding] = catalogue.checks()["index-loops"].findings(of)
    return finding.share_of_step


def test_lines_of_one_loop_count_once_however_often_they_are_called(tmp_path: Path) -> None:
    """Three lines of 61 % each made a loop of 100 % of the step."""
    [once] = {share_of(tmp_path, (5, 2032.0)), share_of(tmp_path, (5, 2032.0), (6, 4096.0))}
    assert once is not None
    together = share_of(tmp_path, (5, 2032.0), (9, 16.0))
    assert together is not None and together > once  # another loop of the same function
