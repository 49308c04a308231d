"""What the package index, the repository's host and a shell read of the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import torchdoctor

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_all_files_name_the_same_repository_and_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    [home] = re.findall(r"repo_url: (\S+)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert PROJECT["urls"]["Homepage"] == citation["repository-code"] == home
    assert citation["version"] == torchdoctor.__version__
    assert citation["license"] == PROJECT["license"]


def test_classifiers_are_ones_that_the_index_knows() -> None:
    known = pytest.importorskip("trove_classifiers").classifiers
    assert set(PROJECT["classifiers"]) <= known


@pytest.mark.slow
def test_workflows_and_issue_forms_hold_to_their_schemas() -> None:
    pytest.importorskip("check_jsonschema")
    templates = GITHUB / "ISSUE_TEMPLATE"
    forms = [path for path in templates.glob("*.yml") if path.stem != "config"]
    for schema, files in (
        ("vendor.github-workflows", sorted((GITHUB / "workflows").glob("*.yml"))),
        ("vendor.github-issue-forms", forms),
        ("vendor.github-issue-config", [templates / "config.yml"]),
    ):
        assert files
        words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
        held = subprocess.run([*words, *files], capture_output=True, text=True, check=False)
        assert held.returncode == 0, held.stdout + held.stderr


def test_a_release_needs_one_secret_and_only_targets_that_exist() -> None:
    text = (GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"secrets\.(\w+)", text)) == {"PYPI_API_TOKEN"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"run: make (\w+)", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize(("typed", "offered"), [("di", "diagnose"), ("gate --bud", "--budget")])
def test_a_shell_completes_commands_and_options(typed: str, offered: str, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    command = tmp_path / "torchdoctor"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m torchdoctor \"$@\"\n")
    command.chmod(0o755)
    words = ["torchdoctor", *typed.split()]
    script = (
        'eval "$(_TORCHDOCTOR_COMPLETE=source_bash torchdoctor)"\n'
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n"
        "_torchdoctor_completion torchdoctor\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [bash, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == [offered], ran.stderr
