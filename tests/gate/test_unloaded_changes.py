"""A gate compared a change that the program never loaded, and passed without a word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from torchdoctor.gate.sources import unloaded_doubts
from torchdoctor.schema import Evidence, fact

PROBE = Path(__file__).parent.parent.parent


def doubts(root: Path, differing: list[str], *loaded: Path) -> list[Evidence]:
    return unloaded_doubts([root, root / "scratch"], differing, [str(path) for path in loaded])


def test_an_installed_copy_is_said_to_be_the_same_on_both_sides(tmp_path: Path) -> None:
    installed = tmp_path / "venv" / "site-packages" / "mylib"
    (installed / "nn").mkdir(parents=True)
    for name in ("__init__.py", "nn/layers.py"):
        (installed / name).write_text("")
    root = tmp_path / "repository"
    (root / "src" / "mylib").mkdir(parents=True)
    (root / "src" / "mylib" / "__init__.py").write_text("")
    changed = ["src/mylib/nn/layers.py", "train.py"]
    script = root / "train.py"
    [doubt] = doubts(root, changed, script, installed / "__init__.py")
    values = {"path": "src/mylib/nn/layers.py", "more": None, "copy": str(installed)}
    assert doubt == fact("installed-copy-loaded", **values)
    # An editable install loads the repository's own; a new file is in no installed copy.
    assert not doubts(root, changed, script, root / "src" / "mylib" / "nn" / "layers.py")
    assert not doubts(root, ["src/mylib/new.py", "train.py"], script, installed / "__init__.py")


def test_a_change_that_nothing_loads_is_said_unless_other_files_differ(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    [doubt] = doubts(tmp_path, ["eval.py", "README.md"], other)
    assert doubt == fact("change-not-loaded", files=["eval.py"])
    assert not doubts(tmp_path, ["eval.py", "config.yaml"], other), "the program may read it"
    assert not doubts(tmp_path, ["eval.py", "train.py"], other, tmp_path / "train.py")
    assert not doubts(tmp_path, ["train.py"], tmp_path / "scratch" / "train.py"), "the reference"
    assert not doubts(tmp_path, ["README.md"], other), "nothing to load"


def test_loaded_files_are_the_programs_own_and_each_installed_packages_first(
    tmp_path: Path,
) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "part.py").write_text("")
    (tmp_path / "main.py").write_text(
        "import json, pytest, pkg.part, sys\n"
        f"sys.path.append({str(PROBE)!r})\n"
        "from torchdoctor.probe.measure.facts import loaded_sources\n"
        "print(json.dumps(loaded_sources()))\n"
    )
    found = json.loads(
        subprocess.run(
            [sys.executable, "main.py"], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout
    )
    own = [
        str((tmp_path / name).resolve()) for name in ("main.py", "pkg/__init__.py", "pkg/part.py")
    ]
    assert set(own) <= set(found)
    assert os.path.realpath(sys.modules["pytest"].__file__ or "") in found
    assert not [x for x in found if x.endswith(("json/__init__.py", "pytest_asyncio/plugin.py"))]
    assert len(found) < 60
