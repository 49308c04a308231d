"""The hand-written pages: links lead to files, and the worked example works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_links_lead_to_files() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert not broken


@pytest.mark.parametrize("folder", ["torchdoctor", "benchmarks", "tests"])
def test_pages_that_the_source_names_exist(folder: str) -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"docs/[a-z/-]+\.md", path.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert not broken


def test_files_that_the_way_of_a_run_names_exist() -> None:
    way = CONTRIBUTING.split("## One run, by its files")[1].split("\n## ")[0]
    names = re.findall(r"`([a-z_/]+\.py)`", way)
    assert len(names) > 10
    assert not [name for name in names if not (ROOT / "torchdoctor" / name).exists()]


EXAMPLE = """
import sys
from pathlib import Path
from catalogue_faults import faults
from probed_examples import run_with
from torchdoctor.advice import catalogue

fix = catalogue.fixes()["flush-denormal"]
assert faults() == []
for fixes, output in (({}, fix.example.without), ({fix.ident: {}}, fix.example.with_fix)):
    ran = run_with(fix.example.program, fixes, Path(sys.argv[1]) / output)
    assert ran.stdout.strip() == output, ran
"""


@pytest.mark.slow
def test_the_fix_of_the_worked_example_is_complete(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "torchdoctor", tmp_path / "torchdoctor")
    [source] = re.findall(r"```python\n(.*?)```", CONTRIBUTING, re.DOTALL)
    (tmp_path / "torchdoctor" / "fixes" / "flush_denormal.py").write_text(source)
    folders = [tmp_path, ROOT / "tests", ROOT / "tests" / "fixes"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    for arguments in (
        ["-m", "torchdoctor", "explain", "flush-denormal"],
        ["-c", EXAMPLE, str(tmp_path)],
    ):
        ran = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
