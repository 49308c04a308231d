"""The commit that a gate compares with: laid over the working tree, or in a folder of its own."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import git, state

from torchdoctor.gate.versions import Reference, elsewhere
from torchdoctor.launch.launch import PROBE
from torchdoctor.launch.sandbox_entry import replace_contents
from torchdoctor.schema import Workload, fact

ROOT = Path(__file__).parent.parent.parent


def tree(folder: Path) -> dict[str, str]:
    """Every file's text and every link's target, without git's own."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file() and not name.startswith(".git/") and name != ".git":
            found[name] = path.read_text()
    return found


def workload(folder: Path, *command: str, python: str = sys.executable) -> Workload:
    return Workload(
        command=[python, *(command or ("train.py",))], cwd=str(folder), python=python,
        script=str(folder / "train.py"),
    )  # fmt: skip


def seen_by_the_reference(root: Path, folder: Path, copy: Path) -> dict[str, str]:
    """A copy of the working tree with what a launch of the reference is handed."""
    reference = Reference(workload(folder), "HEAD")
    try:
        found = reference.contents()
    finally:
        reference.close()
    shutil.copytree(root, copy, symlinks=True)
    moved = {str(copy / Path(path).relative_to(root)): data for path, data in found.items()}
    links = [path for path, data in moved.items() if isinstance(data, str)]
    encoded = {
        path: base64.b64encode(data).decode() if isinstance(data, bytes) else data
        for path, data in moved.items()
    }
    replace_contents(encoded, links)
    return tree(copy)


def test_files_folders_and_links_that_changed_places(project: Path, tmp_path: Path) -> None:
    """A folder where a file stood ended the gate; a link was followed, and its target written."""
    root = project.parent
    (project / "model.py").write_text("one file")
    (project / "old").mkdir()
    (project / "old" / "part.py").write_text("in a folder")
    (project / "shared.py").write_text("the target")
    (project / "chosen.py").symlink_to("shared.py")
    (project / "plain.py").write_text("no link")
    (project / "retargeted").symlink_to("model.py")
    (project / "folder").mkdir()
    (project / "folder" / "x.py").write_text("below a folder that is a link today")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "second")
    committed = tree(root)
    (project / "model.py").unlink()
    (project / "model.py").mkdir()
    (project / "model.py" / "inner.py").write_text("now a folder")
    (project / "model.py" / "untracked.txt").write_text("in the way")
    shutil.rmtree(project / "old")
    (project / "old").write_text("now a file")
    (project / "chosen.py").unlink()
    (project / "chosen.py").write_text("now a file")
    (project / "plain.py").unlink()
    (project / "plain.py").symlink_to("shared.py")
    (project / "retargeted").unlink()
    (project / "retargeted").symlink_to("settings.py")
    shutil.rmtree(project / "folder")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.py").write_text("outside")
    (project / "folder").symlink_to(tmp_path / "outside")
    git(root, "add", "-A", ":!training/model.py/untracked.txt")
    assert seen_by_the_reference(root, project, tmp_path / "copy") == committed
    assert (tmp_path / "outside" / "x.py").read_text() == "outside"


def test_a_folder_of_the_reference_whose_place_an_untracked_file_took(
    project: Path, tmp_path: Path
) -> None:
    root = project.parent
    (project / "parts" / "inner").mkdir(parents=True)
    (project / "parts" / "inner" / "x.py").write_text("then")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "second")
    committed = tree(root)
    shutil.rmtree(project / "parts")
    (project / "parts").write_text("now a file that git was not told of")
    assert seen_by_the_reference(root, project, tmp_path / "copy") == committed


@pytest.fixture
def with_submodule(project: Path, tmp_path: Path) -> Path:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q", "-b", "main")
    (other / "library.py").write_text("VALUE = 1\n")
    git(other, "add", "-A")
    git(other, "commit", "-qm", "library")
    root = project.parent
    allow = ["-c", "protocol.file.allow=always"]
    git(root, *allow, "submodule", "--quiet", "add", str(other), "training/library")
    git(root, "commit", "-qm", "with a submodule")
    return project


def test_submodules_stay_as_they_are_today(with_submodule: Path, tmp_path: Path) -> None:
    root = with_submodule.parent
    (with_submodule / "library" / "library.py").write_text("VALUE = 2\n")
    reference = Reference(workload(with_submodule), "HEAD")
    try:
        assert reference.contents() == {} == reference.differing
        moved = elsewhere(reference)[0].workload
        assert Path(moved.cwd, "library", "library.py").read_text() == "VALUE = 2\n"
    finally:
        reference.close()
    (with_submodule / "settings.py").write_text("PAUSE_S = 1\n")
    seen = seen_by_the_reference(root, with_submodule, tmp_path / "copy")
    assert seen["training/settings.py"] == "PAUSE_S = 0.010\n"
    assert seen["training/library/library.py"] == "VALUE = 2\n"


def test_git_answers_in_the_reference_folder_and_nothing_of_the_users_changes(
    project: Path,
) -> None:
    """A program that logs `git rev-parse HEAD` could not be measured without the overlay."""
    root = project.parent
    first = git(root, "rev-parse", "HEAD").strip()
    (project / "settings.py").write_text("PAUSE_S = 1\n")
    git(root, "commit", "-qam", "second")
    before = state(project)
    reference = Reference(workload(project), "HEAD~1")
    try:
        folder = Path(elsewhere(reference)[0].workload.cwd)
        assert git(folder, "rev-parse", "HEAD").strip() == first
        top = git(folder, "rev-parse", "--show-toplevel").strip()
        assert Path(top).resolve() == reference.folder.resolve()
        subprocess.run(["git", "status"], cwd=folder, check=True, capture_output=True)
        assert git(folder, "status", "--porcelain", "--untracked-files=no") == ""
    finally:
        reference.close()
    assert state(project) == before


PACKAGED = "import package, os; print(package.VERSION, os.path.basename(os.getcwd()))\n"


@pytest.fixture
def packaged(project: Path) -> Path:
    """The program imports a package from src/, whose committed version is 1, today's 2."""
    package = project.parent / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VERSION = 1\n")
    (project / "train.py").write_text(PACKAGED)
    git(project.parent, "add", "-A")
    git(project.parent, "commit", "-qm", "package")
    (package / "__init__.py").write_text("VERSION = 2\n")
    return project


def printed(reference: Reference, python: str = sys.executable) -> str:
    moved, doubts = elsewhere(reference)
    assert doubts == []
    return subprocess.run(
        [python, *moved.workload.command[1:]], cwd=moved.workload.cwd, text=True, check=True,
        capture_output=True, env={**os.environ, **moved.variables},
    ).stdout.strip()  # fmt: skip


def test_pythonpath_leads_to_the_references_package(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It led to the working tree's: the new version was compared with itself."""
    source = packaged.parent / "src"
    monkeypatch.setenv("PYTHONPATH", f"{source}{os.pathsep}{ROOT}")
    reference = Reference(workload(packaged), "HEAD")
    try:
        assert printed(reference) == "1 training"
        paths = elsewhere_paths(reference)
        assert paths == [str(PROBE), str(reference.folder / "src"), str(ROOT)]
    finally:
        reference.close()


def elsewhere_paths(reference: Reference) -> list[str]:
    shutil.rmtree(reference.folder / ".git", ignore_errors=True)
    return elsewhere(reference)[0].variables["PYTHONPATH"].split(os.pathsep)


@pytest.mark.parametrize("kind", ["pth", "finder"])
def test_an_editable_install_leads_to_the_references_package(
    packaged: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    installed = tmp_path / "installed"
    installed.mkdir()
    source = packaged.parent / "src"
    if kind == "pth":
        text = f"import sys\nsys.path.append({str(source)!r})\n"
    else:
        mapping = {"package": str(source / "package")}
        (installed / "__editable___package_1_0_finder.py").write_text(f"MAPPING = {mapping!r}\n")
        text = "import __editable___package_1_0_finder\n"
    (installed / "sitecustomize.py").write_text(text)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={installed} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    reference = Reference(workload(packaged, python=str(python)), "HEAD")
    try:
        assert printed(reference) == "1 training"
    finally:
        reference.close()


def test_whole_paths_of_the_working_tree_become_the_references(project: Path) -> None:
    settings, data = project / "settings.py", project / "data.txt"
    given = workload(
        project, str(project / "train.py"), f"--config={settings}", f"data={data}",
        "--name=/no/such/path", "--rate=0.1", f"{project}=x", "x" * 5000,
    )  # fmt: skip
    reference = Reference(given, "HEAD")
    try:
        there = reference.folder / "training"
        assert elsewhere(reference)[0].workload.command[1:] == [
            str(there / "train.py"), f"--config={there / 'settings.py'}",
            f"data={there / 'data.txt'}", "--name=/no/such/path", "--rate=0.1", f"{project}=x",
            "x" * 5000,
        ]  # fmt: skip
        assert (there / "data.txt").read_text() == "1 2 3"
    finally:
        reference.close()


def test_an_interpreter_that_cannot_be_asked_is_a_doubt(project: Path) -> None:
    reference = Reference(
        Workload(command=["bash", "train.sh"], cwd=str(project), script=None), "HEAD"
    )
    try:
        assert elsewhere(reference)[1] == [fact("imports-unknown")]
    finally:
        reference.close()
