"""Somebody goes on writing the program while a gate measures it."""

from __future__ import annotations

from pathlib import Path

from torchdoctor.gate.sources import changed, digests
from torchdoctor.schema.figures import counted


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
    assert changed(then, root) == ""
    files[0].write_text("STEP = 2\n")
    said = changed(then, root)
    assert said.startswith("train.py ") and "model.py" not in said
    files[1].unlink()
    said = changed(then, root)
    assert said.startswith("model.py ") and counted(1, "more file") in said
