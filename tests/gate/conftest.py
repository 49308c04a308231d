from __future__ import annotations

from pathlib import Path

import pytest
from repository import TRAIN, git


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose program lies in a subfolder and reads an ignored file."""
    root = tmp_path / "repository"
    folder = root / "training"
    folder.mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    (root / ".gitignore").write_text("data.txt\nout*/\n__pycache__/\n")
    (folder / "train.py").write_text(TRAIN)
    (folder / "settings.py").write_text("PAUSE_S = 0.010\n")
    (folder / "data.txt").write_text("1 2 3")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return folder
