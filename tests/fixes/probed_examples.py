"""Runs a program under the real probe, with fixes, to its own end."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked_programs

from torchdoctor import probe
from torchdoctor.advice import catalogue


@dataclass
class Ran:
    """What the program printed, and what became of the fixes in the process that trained."""

    stdout: str
    stderr: str
    returncode: int
    applied: dict[str, dict[str, Any]]  # fix id -> AppliedFix as plain data
    probe_errors: list[str]


def run_with(
    program: str,
    fixes: dict[str, dict[str, Any]],
    folder: Path,
    seed: int | None = None,
    variables: dict[str, str] | None = None,
    arguments: Sequence[str] = (),
    boundary: dict[str, Any] | None = None,
) -> Ran:
    """Run `program`, given as text, in a process of its own; fixes: id -> settings.

    `variables` of the environment are the user's; what a fix makes of them comes on top.
    `boundary`: what an observed launch has learned of the program's steps.
    """
    channel = folder / "channel"
    channel.mkdir(parents=True)
    script = folder / "example.py"
    script.write_text(program)
    files = {ident: catalogue.fixes()[ident].file for ident in fixes}
    plan = {
        "channel": str(channel),
        "purpose": "observe",
        "boundary": boundary,
        "after": "continue",
        "seed": seed,
        "fixes": [{"id": i, "file": files[i], "settings": s} for i, s in fixes.items()],
    }
    plan_file = folder / "plan.json"
    plan_file.write_text(json.dumps(plan))
    environment = {
        **forked_programs.environment(),
        "TORCHINDUCTOR_CACHE_DIR": str(_compiled(folder)),
        **(variables or {}),
        "PYTHONPATH": str(Path(str(probe.__file__)).parent),
        "TORCHDOCTOR_PLAN": str(plan_file),
    }
    for ident, settings in fixes.items():
        module = catalogue.fixes()[ident]
        changed = module.environment(settings)
        environment |= {name: value for name, value in changed.items() if value is not None}
        environment = {k: v for k, v in environment.items() if changed.get(k, v) is not None}
    ran = forked_programs.run([script.name, *arguments], folder, environment, folder)
    return Ran(ran.stdout.strip(), ran.stderr, ran.returncode, *_facts(channel))


def _compiled(folder: Path) -> Path:
    """One cache for all tests of a run: the headers alone take ten seconds to compile."""
    runs = [path for path in folder.parents if re.fullmatch(r"pytest-\d+", path.name)]
    return (runs or [folder])[0] / "inductor"


def _facts(channel: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    errors = [path.read_text() for path in channel.glob("probe-error-*.txt")]
    applied: dict[str, dict[str, Any]] = {}
    for path in channel.glob("process-*.json"):
        facts = json.loads(path.read_text())
        errors += facts["probe_errors"]
        if not facts["is_loader_worker"]:
            applied = {row["fix"]: row for row in facts["fixes"]}
    return applied, errors
