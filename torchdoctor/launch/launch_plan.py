"""The plan of one launch: the file that tells the probe what to do in the user's process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchdoctor.words import Boundary

Fix = tuple[str, Path, dict[str, Any]]  # id, file, settings


def launch_plan(
    channel: Path, purpose: str, *, seed: int, boundary: Boundary | None = None, **more: Any
) -> dict[str, Any]:
    """The content of the plan file.

    Args:
        channel: the folder that the probe writes to.
        purpose: "observe", "profile" or "time".
        seed: given to a program that sets none.
        boundary: what separates iterations; None where that is not known yet.
        more: keys that differ from what is usual.
    """
    plan: dict[str, Any] = {
        "channel": str(channel.absolute()),
        "purpose": purpose,
        "boundary": None,
        "fixes": [],
        "seed": seed,
        "seed_offset": 0,
        "phases": True,
        "profile": None,
        "sample_stacks": False,
        "stack_interval_s": 0.005,
        "fingerprint_batches": 0,
        "after": "freeze",
        "max_window_s": None,
        "redirect": None,
        "watch_files": False,
        "batches_learn": False,
        "files_read": None,
    }
    if boundary is not None:
        plan["boundary"] = {
            "kind": boundary.kind,
            "ident": boundary.ident,
            "every": boundary.every,
            "learned_by": boundary.learned_by,
        }
    return {**plan, **more}


def plan_entries(fixes: Sequence[Fix]) -> list[dict[str, Any]]:
    """Fixes as the plan names them."""
    return [{"id": i, "file": str(f), "settings": s} for i, f, s in fixes]
