import os
import sys

import pytest

from torchdoctor.launch import workload as module
from torchdoctor.launch.workload import choose_interpreter, workload_of
from torchdoctor.schema.errors import UsageError


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "has_torch", lambda interpreter: "without" not in interpreter)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("PATH", os.environ["PATH"])
    (tmp_path / "train.py").write_text("print('hi')\n")
    return tmp_path


def interpreter(folder, name="python"):
    folder.mkdir(parents=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def refused(project, *args, **options):
    with pytest.raises(UsageError) as caught:
        workload_of(args, cwd=str(project), **options)
    return str(caught.value)


def test_a_script_is_started_as_typed_by_the_chosen_interpreter(project):
    found = workload_of(["train.py", "--lr", "1e-3"], python=sys.executable, cwd=str(project))
    assert found.command == [sys.executable, "train.py", "--lr", "1e-3"]
    assert found.cwd == str(project)
    assert found.script == str(project / "train.py")
    assert found.python == sys.executable


def test_a_command_is_taken_as_it_is(project):
    found = workload_of(["sh", "-c", "exit 3"], cwd=str(project))
    assert found.command == ["sh", "-c", "exit 3"]
    assert (found.script, found.python) == (None, None)


def test_the_script_of_a_launcher_is_known(project):
    found = workload_of(["env", "A=1", "train.py", "other.py"], cwd=str(project))
    assert found.script == str(project / "train.py")
    assert found.python is None


def test_python_in_front_of_a_script_is_a_command_whose_script_is_known(project):
    found = workload_of([sys.executable, "-u", "-W", "ignore", "train.py"], cwd=str(project))
    assert found.command[1:] == ["-u", "-W", "ignore", "train.py"]
    assert found.script == str(project / "train.py")


def test_modules_are_started_by_the_interpreter(project):
    command = [sys.executable, "-m", "package.train", "-I"]
    assert workload_of(command, cwd=str(project)).script is None
    assert workload_of(command[1:], sys.executable, str(project)).command == command


@pytest.mark.parametrize("option", ["-I", "-E", "-S", "-uI", "-sE"])
def test_options_that_keep_the_probe_out_are_refused(project, option):
    assert f"-{option[-1]}" in refused(project, sys.executable, option, "train.py")


@pytest.mark.parametrize("options", [["-s"], ["-O", "-B"], ["-X", "dev"], ["-WEI"], ["-c", "-I"]])
def test_other_options_of_python_are_not(project, options):
    workload_of([sys.executable, *options, "train.py"], cwd=str(project))


def test_the_active_environment_comes_first_the_path_last(project, monkeypatch):
    first = interpreter(project / "venv" / "bin")
    second = interpreter(project / "path", "python3")
    monkeypatch.setenv("PATH", str(project / "path"))
    monkeypatch.setenv("VIRTUAL_ENV", str(project / "venv"))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    local = interpreter(project / ".venv" / "bin")
    own = interpreter(project / "own")
    monkeypatch.setattr(sys, "executable", own)
    order = [
        (first, "the active virtual environment"),
        (local, "./.venv"),
        (own, "torchdoctor's own environment"),
        (second, "the PATH"),
    ]
    without_torch: set[str] = set()
    monkeypatch.setattr(module, "has_torch", lambda path: path not in without_torch)
    for path, named_by in order:
        chosen = choose_interpreter(None, str(project))
        assert (chosen.path, chosen.named_by) == (path, named_by)
        without_torch.add(path)  # the next is taken
    with pytest.raises(UsageError, match="no torch"):
        choose_interpreter(None, str(project))


def test_what_was_asked_for_comes_before_the_commands_own_interpreter(project):
    asked = interpreter(project / "asked")
    typed = interpreter(project / "typed")
    found = workload_of([typed, "train.py"], python=asked, cwd=str(project))
    assert (found.command, found.python_from) == ([asked, "train.py"], "--python")
    found = workload_of([typed, "train.py"], cwd=str(project))
    assert (found.command, found.python_from) == ([typed, "train.py"], "the command")


def test_an_interpreter_without_torch_is_passed_over_or_refused(project, monkeypatch):
    without = interpreter(project / "without", "python3")
    monkeypatch.setenv("PATH", str(project / "without"))
    assert choose_interpreter(None, str(project)).path == sys.executable
    assert "no torch" in refused(project, "train.py", python=without)
    assert "no torch" in refused(project, without, "train.py")


def test_whether_torch_is_there_is_found_without_importing_it(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert module.has_torch(sys.executable)
    assert not module.has_torch(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "Nothing to run"),
        (["missing.py"], "does not exist"),
        (["no-such-command"], "was not found"),
        (["broken.py"], "line 2"),
        (["binary.py"], "not"),
        (["folder"], "__main__"),
        (["notes.ipynb"], "version 4"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_sentence(project, args, said):
    (project / "broken.py").write_text("x = 1\ndef (\n")
    (project / "binary.py").write_bytes(b"\x00\x01\x02\xff")
    (project / "folder").mkdir()
    (project / "notes.ipynb").write_text("{}")
    assert said in refused(project, *args)


def test_a_missing_interpreter_and_a_missing_folder(project):
    assert "was not found" in refused(project, "train.py", python="python9.99")
    with pytest.raises(UsageError, match="does not exist"):
        workload_of(["train.py"], cwd=str(project / "nowhere"))


def test_an_interpreter_for_a_command_that_is_no_script_is_refused(project):
    assert "--python" in refused(project, "sh", "-c", "true", python=sys.executable)


def test_a_folder_with_a_main_module_is_a_script(project):
    (project / "app").mkdir()
    (project / "app" / "__main__.py").write_text("")
    assert workload_of(["app"], sys.executable, str(project)).script == str(project / "app")


def test_a_busy_machine_is_no_interpreter_without_torch(tmp_path, monkeypatch):
    """On a machine at its limit the right interpreter was said to have no torch."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr(module, "_ASK_TIMEOUT_S", 0.0)
    assert workload_of(["train.py"], sys.executable, str(tmp_path)).python == sys.executable
