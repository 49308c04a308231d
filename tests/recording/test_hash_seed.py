"""Labels numbered by a set of their names: the same ones in every launch."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import launch_script

from torchdoctor.launch.sandbox import Sandbox

SOURCE = "print([name for name in {f'class {n}' for n in range(40)}])"


def order(folder: Path, name: str, seed: int) -> str:
    project = folder / name / "project"
    project.mkdir(parents=True)
    with Sandbox.choose("none", project) as sandbox:
        found = launch_script(project, SOURCE, sandbox, plan={"seed": seed})
    assert found.exit_code == 0
    return found.output_tail


def test_a_set_of_strings_has_one_order(tmp_path: Path) -> None:
    """Numbered in another order they gave other losses, so no fix was known to train the same."""
    first, again, other = (order(tmp_path, str(n), seed) for n, seed in enumerate((3, 3, 4)))
    assert first == again
    assert first != other


def test_the_users_own_choice_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert order(tmp_path, "one", 3) == order(tmp_path, "other", 4)
