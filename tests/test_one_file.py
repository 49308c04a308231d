"""One file is one file: a check or a fix is added without another file being edited."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from compared_pairs import synthetic

from torchdoctor.advice import catalogue

PACKAGE = Path(catalogue.__file__ or "").parent.parent
TESTS = Path(__file__).parent
# Ids that are also plain words of the field: a number format, a kind of layer.
WORDS = {"tf32", "attention"}
CHECK = '''"""Is the step of any length at all?

What it means
-------------
The program trains.

How it is measured
------------------
By its steps.

Not to be confused with
-----------------------
Nothing.
"""

from torchdoctor.schema import CheckSpec, Symptom, fact

CHECK = CheckSpec(
    branch="other",
    threshold=1,
    unit="step",
    source="torchdoctor",
    sentences={"steps": "It takes steps."},
    examine=lambda recording: [Symptom(evidence=fact("steps"))] if recording.trace else [],
    fires=[{"trace": {"path": "t", "steps": 4, "step_s": 0.1}}],
    quiet=[{}],
)
'''
FIX = '''"""Print a word.

What it does
------------
Prints it.

Why it helps
------------
It is seen.

Risks
-----
None.

Make it permanent
-----------------
    print("made up")

Sources
-------
- https://docs.python.org/3/library/functions.html#print
"""

from torchdoctor.queries.lookup import training_loaders
from torchdoctor.schema import fact
from torchdoctor.schema.specs import Example, FixSpec


def apply(torch, settings, program):
    print("made up")
    program.applied()


FIX = FixSpec(
    name="made up",
    treats=("takes-steps",),
    keeps_results="exactly",
    when="launch",
    refuses=lambda recording: None if training_loaders(recording) else fact("no-loader"),
    sentences={"no-loader": "It has no loader."},
    apply=apply,
    instruction=lambda settings, recording: 'print("made up")',
    example=Example(code="", without="", with_fix="made up"),
)
'''
EXAMPLES = """
import sys
from pathlib import Path
from catalogue_faults import faults
from partial_recordings import recording
from probed_examples import run_with
from torchdoctor.advice import catalogue

check, fix = catalogue.checks()["takes-steps"], catalogue.fixes()["made-up"]
assert all(check.findings(recording(over)) for over in check.fires)
assert not any(check.findings(recording(over)) for over in check.quiet)
assert faults() == []
for with_fix, folder in ((False, "a"), (True, "b")):
    fixes = {fix.ident: fix.example.settings} if with_fix else {}
    ran = run_with(fix.example.program, fixes, Path(sys.argv[1]) / folder)
    assert ran.stdout == (fix.example.with_fix if with_fix else fix.example.without), ran
"""


@pytest.mark.slow
def test_a_new_check_and_a_new_fix_are_one_file_each(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "torchdoctor")
    (tmp_path / "torchdoctor" / "checks" / "takes_steps.py").write_text(CHECK)
    (tmp_path / "torchdoctor" / "fixes" / "made_up.py").write_text(FIX)
    trace = tmp_path / "trace.json"
    trace.write_bytes(synthetic.every_branch().text())
    path = os.pathsep.join(map(str, [tmp_path, TESTS, TESTS / "fixes"]))

    def python(*arguments: str) -> str:
        ran = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "COLUMNS": "100"},
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert python("-m", "torchdoctor", "explain", "made-up").startswith("made-up (fix): ")
    assert "made-up" in python("-m", "torchdoctor", "explain", "takes-steps")
    python(str(TESTS.parent / "tools" / "catalogue_pages.py"), "docs")
    assert "[made-up](fixes/made-up.md)" in (tmp_path / "docs" / "catalogue.md").read_text()
    assert (tmp_path / "docs" / "checks" / "takes-steps.md").exists()
    report = python("-m", "torchdoctor", "diagnose", "--details", str(trace))
    assert "takes-steps" in report and 'print("made up")' in report
    python("-c", EXAMPLES, str(tmp_path))


def _ids() -> dict[str, Path]:
    folders = [PACKAGE / name for name in ("checks", "fixes", "fixes/ablations")]
    return {
        path.stem.replace("_", "-"): path
        for folder in folders
        for path in folder.glob("*.py")
        if path.stem != "__init__"
    }


def _strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_id_of_a_check_or_a_fix_is_written_in_another_file() -> None:
    """But for fixes, which name the checks that they treat and the fixes that go with them."""
    ids = _ids()
    wrong = [
        f"{path.relative_to(PACKAGE)} names {string}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] != "fixes"
        for string in _strings(path)
        if string in ids.keys() - WORDS and ids[string] != path
    ]
    assert not wrong
