"""The drawings of the rooms are made from the imports, and are those of today."""

from __future__ import annotations

from pathlib import Path

import pytest
import room_drawings

ROOT = Path(__file__).parent.parent
LADDER = {"top": {"middle", "ground"}, "middle": {"ground"}, "ground": set(), "cellar": set()}


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_a_page_has_the_drawing_that_the_imports_give(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    imports = room_drawings.imported_rooms(ROOT / "torchdoctor")
    assert room_drawings.drawn(text, imports) == text, "make docs writes it again"
    assert room_drawings.ARROWS.search(text) or room_drawings.FLOORS.search(text)


def test_an_import_that_others_lead_to_has_no_arrow() -> None:
    assert room_drawings.arrows(LADDER) == [("top", "middle"), ("middle", "ground")]


def test_a_room_stands_above_all_that_it_imports() -> None:
    assert room_drawings.floors(LADDER) == [["top"], ["middle"], ["cellar", "ground"]]


def test_imports_are_read_wherever_they_stand_in_a_file(tmp_path: Path) -> None:
    package = tmp_path / "house"
    for room, code in {
        "attic": "def late():\n    from house.hall import door",
        "hall": "import house.floor.carpet\nfrom house import floor\nfrom . import own",
        "floor": "import json",
    }.items():
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").write_text(code)
    assert room_drawings.imported_rooms(package) == {
        "attic": {"hall"},
        "floor": set(),
        "hall": {"floor"},
    }
