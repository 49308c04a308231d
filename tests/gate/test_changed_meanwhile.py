"""Somebody goes on writing the program while a gate measures it."""

from __future__ import annotations

from pathlib import Path

from torchdoctor.gate.sources import changed, digests
from torchdoctor.schema import fact


def test_a_source_that_is_another_one_at_the_end_is_named(tmp_path: Path) -> None:
    """Four pairs were of two programs, and nothing said so."""
    root, outside = tmp_path / "repository", tmp_path / "library.py"
    root.mkdir()
    files = [root / "train.py", root / "model.py", outside]
    for file in files:
        file.write_text("STEP = 1\n")
    then = digests([str(file) for file in files], root)
    files[0].write_text("STEP = 1\n")  # as it was
    outside.write_text("STEP = 2\n")  # nobody's working tree
    assert changed(then, root) is None
    files[0].write_text("STEP = 2\n")
    assert changed(then, root) == fact("sources-changed", file="train.py", more=None)
    files[1].unlink()
    assert changed(then, root) == fact("sources-changed", file="model.py", more=1)
