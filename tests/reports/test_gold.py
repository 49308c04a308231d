"""The terminal report and the Markdown, word for word.

After a wanted change: TORCHDOCTOR_UPDATE_GOLD=1 python -m pytest tests/reports/test_gold.py
"""

import os
from pathlib import Path

import pytest
from samples import SAMPLES

from torchdoctor.reports import markdown, terminal

GOLD = Path(__file__).parent / "gold"
CASES = [
    *((name, "txt", terminal.render) for name in SAMPLES),
    *((name, "md", markdown.render) for name in ("loader_bound", "refused_heavy")),
]


@pytest.mark.parametrize(("name", "suffix", "render"), CASES, ids=[f"{c[0]}.{c[1]}" for c in CASES])
def test_output_is_as_it_was_approved(name, suffix, render) -> None:
    path, text = GOLD / f"{name}.{suffix}", render(SAMPLES[name]())
    if os.environ.get("TORCHDOCTOR_UPDATE_GOLD"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
