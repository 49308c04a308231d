"""The first screens, the whole terminal report and the Markdown, word for word.

After a wanted change: TORCHDOCTOR_UPDATE_GOLD=1 python -m pytest tests/reports/test_gold.py
"""

import os
from pathlib import Path

import pytest
from samples import SAMPLES

from torchdoctor.reports.formats import rendered

GOLD = Path(__file__).parent / "gold"
CASES = [
    *((f"{name}.100.txt", name, {"full": False}) for name in SAMPLES),
    ("loader_bound.details.txt", "loader_bound", {}),
    ("compute_bound.details.txt", "compute_bound", {}),
    ("nothing_found.details.txt", "nothing_found", {}),
    *((f"{name}.md", name, {"format": "markdown"}) for name in ("loader_bound", "refused_heavy")),
]


def approved(file: str, text: str) -> None:
    path = GOLD / file
    if os.environ.get("TORCHDOCTOR_UPDATE_GOLD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("file", "name", "how"), CASES, ids=[case[0] for case in CASES])
def test_output_is_as_it_was_approved(file, name, how) -> None:
    approved(file, rendered(SAMPLES[name](), **{"format": "terminal", **how}))


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_first_screen_is_one_screen(name, width) -> None:
    lines = rendered(SAMPLES[name](), "terminal", full=False, width=width).splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= width for line in lines if "details: " not in line)
