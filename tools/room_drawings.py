"""Draw the rooms of `torchdoctor/` into docs/architecture.md and CONTRIBUTING.md, from the imports.

An arrow leads to a room that no other arrow leads to in several steps. A floor uses those below it.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
ARROWS = re.compile(r"(?<=```mermaid\ngraph TD\n).*?(?=```)", re.DOTALL)
FLOORS = re.compile(r"(?<=<!-- floors -->\n```\n).*?(?=```)", re.DOTALL)
COUNT = re.compile(r"(?<=torchdoctor has )\d+(?= rooms)")

Imports = dict[str, set[str]]


def imported_rooms(package: Path) -> Imports:
    """Return for each room the rooms that its files import."""
    rooms = {init.parent.name for init in package.glob("*/__init__.py")}
    imports: Imports = {room: set() for room in sorted(rooms)}
    for room in rooms:
        for path in sorted((package / room).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for name in _imported_names(tree):
                parts = name.split(".")
                if parts[0] == package.name and len(parts) > 1 and parts[1] in rooms - {room}:
                    imports[room].add(parts[1])
    return imports


def reached(imports: Imports, room: str) -> set[str]:
    """Return all rooms that a room imports, in one step or several."""
    rooms: set[str] = set()
    waiting = list(imports[room])
    while waiting:
        other = waiting.pop()
        if other not in rooms:
            rooms.add(other)
            waiting += imports[other]
    return rooms


def arrows(imports: Imports) -> list[tuple[str, str]]:
    """Return the imports without those that others lead to, the upper floors first."""
    kept = []
    for room in sorted(imports, key=lambda room: (-_floor(imports, room), room)):
        for other in sorted(imports[room]):
            longer_ways = (reached(imports, between) for between in imports[room] - {other})
            if not any(other in rooms for rooms in longer_ways):
                kept.append((room, other))
    return kept


def floors(imports: Imports) -> list[list[str]]:
    """Return the rooms from the top; each uses rooms of later lists only."""
    by_floor: dict[int, list[str]] = {}
    for room in sorted(imports):
        by_floor.setdefault(_floor(imports, room), []).append(room)
    return [by_floor[floor] for floor in sorted(by_floor, reverse=True)]


def drawn(page: str, imports: Imports) -> str:
    """Return a page with the drawings that it has, as the imports are now."""
    lines = [f"  {room} --> {other}\n" for room, other in arrows(imports)]
    page = ARROWS.sub("".join(lines), page, count=1)
    page = COUNT.sub(str(len(imports)), page)
    rows = ["   ".join(f"{room:<9}" for room in floor).rstrip() for floor in floors(imports)]
    return FLOORS.sub("".join(f"{row}\n" for row in rows), page, count=1)


def _floor(imports: Imports, room: str) -> int:
    """Return on how many floors a room stands."""
    below = [_floor(imports, other) for other in imports[room]]
    return 1 + max(below, default=-1)


def _imported_names(tree: ast.AST) -> list[str]:
    """Return the dotted names that a file imports absolutely."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def main() -> int:
    """Write the drawings into the pages."""
    imports = imported_rooms(ROOT / "torchdoctor")
    for page in (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"):
        page.write_text(drawn(page.read_text(encoding="utf-8"), imports), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
