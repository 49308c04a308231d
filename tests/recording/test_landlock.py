"""Where namespaces are forbidden: a program writes to the launch's folder alone, whatever it uses.

Skipped only where the kernel has no Landlock.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import commands
import pytest
import without_namespaces
from launching import content_of, launch_script
from light_torch import LIGHT

from torchdoctor.bench.record import Recorder
from torchdoctor.launch import sandbox as sandbox_module
from torchdoctor.launch import sandbox_entry
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.schema import Workload, message
from torchdoctor.schema.errors import NoStepFound, ProgramFailed, TimedOut

pytestmark = pytest.mark.skipif(without_namespaces.version() < 1, reason="no Landlock here")
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def landlock():
    with Sandbox.choose("landlock") as sandbox:
        yield sandbox


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "out").mkdir(parents=True)
    (folder / "out" / "model.pt").write_bytes(b"precious")
    (folder / "data.bin").write_bytes(bytes(64))
    return folder


# Each does what the redirection of Python's and torch's writers cannot see.
WAYS_PAST = {
    "shell": "os.system('rm -rf out; echo x > new; mv data.bin moved; mkdir folder')",
    "raw file": "io.FileIO('data.bin', 'w')",
    "posix": "posix.unlink('data.bin')",
    "posix open": "posix.open('data.bin', os.O_WRONLY | os.O_TRUNC)",
    "posix truncate": "posix.truncate('data.bin', 3)",
    "folder descriptor": "os.unlink('data.bin', dir_fd=os.open('.', os.O_RDONLY))",
    "isolated child": "subprocess.run([sys.executable, '-I', '-c', 'open(\"data.bin\", \"w\")'])",
    "C": "print(ctypes.CDLL(None).remove(b'data.bin'))",
    "link to it": "posix.link('data.bin', os.environ['TMPDIR'] + '/other')",
    "away with it": "posix.rename('data.bin', os.environ['TMPDIR'] + '/other')",
    "detached child": "subprocess.Popen(['sh', '-c', 'sleep 0.2; rm data.bin'],"
    " start_new_session=True).wait()",
}


@pytest.mark.parametrize("way", WAYS_PAST)
def test_what_gets_past_the_redirection_is_denied(landlock, project, way):
    before = None
    source = (
        "import ctypes, io, os, posix, subprocess, sys\n"
        f"try:\n    {WAYS_PAST[way]}\nexcept OSError as error:\n    print(error)\n"
        "print('went on')\n"
    )
    (project / "train.py").write_text(source)
    before = content_of(project)
    result = launch_script(project, source, landlock)
    assert result.output_tail.endswith("went on\n")
    assert content_of(project) == before
    assert result.escaped_writes == []


def test_what_python_writes_reads_back_and_other_programs_have_places_to_write(landlock, project):
    source = (
        "import os, shutil, subprocess, sys, tempfile\n"
        "from multiprocessing import shared_memory\n"
        "open('out/model.pt', 'w').write('new'); print(open('out/model.pt').read())\n"
        "os.replace('data.bin', 'out/moved'); print(os.path.getsize('out/moved'))\n"
        "shutil.rmtree('out'); print(os.path.exists('out'))\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    shell = 'cd %s && mkdir a b && echo c > a/c && mv a/c b/ && cat b/c'\n"
        "    subprocess.run(shell % folder, shell=True, check=True)\n"
        "subprocess.run('echo 1 > /dev/null; echo told >> /dev/stderr', shell=True, check=True)\n"
        "open('/dev/stdout', 'a').write('and here\\n')\n"
        "open('/proc/self/comm', 'w').write('training')\n"
        "shared_memory.SharedMemory(create=True, size=99).unlink()\n"
    )
    (project / "train.py").write_text(source)
    before = content_of(project)
    result = launch_script(project, source, landlock)
    lines = result.output_tail.splitlines()
    assert lines[:3] == ["new", "64", "False"], result.output_tail
    assert set(lines[3:]) == {"c", "told", "and here"}
    assert (result.exit_code, result.escaped_writes) == (0, [])
    assert content_of(project) == before
    assert list(landlock.store.folder.iterdir()) == []


TRAINING = f"""
import os, torch
{LIGHT}from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 40_000

    def __getitem__(self, index):
        if index == 5:
            open("from-a-worker", "w").write("x")
            os.system("echo x > from-a-shell-of-a-worker")
        return torch.ones(4) * index

if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    kind = os.environ["KIND_OF_START"]
    for step, batch in enumerate(
        DataLoader(Samples(), 8, num_workers=1, multiprocessing_context=kind)
    ):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if step % 10 == 0:
            torch.save(model.state_dict(), "out/model.pt")
            assert torch.load("out/model.pt")["weight"].shape == (1, 4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_a_training_with_loader_workers_is_observed_and_changes_nothing(
    project, tmp_path, monkeypatch, kind
):
    pytest.importorskip("torch")
    monkeypatch.setenv("KIND_OF_START", kind)
    (project / "train.py").write_text(TRAINING)
    before = content_of(project)
    with Sandbox.choose("landlock") as sandbox:
        observed = recorder(project, tmp_path, sandbox).observe(None, 1.0, 5.0)
    assert observed.steps.steps > 5
    assert [x.num_workers for x in observed.processes[0].loaders] == [1]
    assert content_of(project) == before


def recorder(project, tmp_path, sandbox, timeout_s=120.0):
    (tmp_path / "run").mkdir()
    script = str(project / "train.py")
    workload = Workload(
        command=[sys.executable, script], cwd=str(project), python=sys.executable, script=script
    )
    return Recorder(workload, tmp_path / "run", sandbox, 0, None, timeout_s)


@pytest.mark.parametrize(
    ("ending", "error"),
    [("sys.exit('no luck')", ProgramFailed), ("", NoStepFound), ("time.sleep(600)", TimedOut)],
)
@pytest.mark.parametrize("mode", ["landlock", "none"])
def test_a_first_launch_that_is_of_no_use_tells_what_it_changed_all_the_same(
    project, tmp_path, ending, error, mode
):
    """Modes and times no kernel keeps from it; without a layer, everything else."""
    change = "chmod 600 out/model.pt" if mode == "landlock" else "rm out/model.pt"
    (project / "train.py").write_text(f"import os, sys, time\nos.system({change!r})\n{ending}\n")
    (project / "out" / "model.pt").chmod(0o644)
    with Sandbox.choose(mode) as sandbox, pytest.raises(error) as raised:
        recorder(project, tmp_path, sandbox, timeout_s=4.0).observe(None, 1.0, 5.0)
    assert str(project / "out" / "model.pt") in str(raised.value)


def in_container(*arguments, cwd):
    words = [sys.executable, "-m", "torchdoctor", *arguments]
    return subprocess.run(
        without_namespaces.in_container(words), cwd=cwd, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=300, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip


@pytest.mark.slow
def test_in_a_container_that_forbids_namespaces_a_failing_program_removes_nothing(project):
    """It removed the user's files, and neither before nor after was a word said."""
    (project / "train.py").write_text(
        "import os, sys\nos.system('rm -rf out')\nsys.exit('no luck')"
    )
    before = content_of(project)
    ended = in_container("run", "--quiet", "--output", "../run", "train.py", cwd=project)
    assert ended.returncode == 3, ended.stderr
    assert content_of(project) == before
    assert "--no-sandbox" in ended.stderr  # what may have made it fail
    ended = in_container(
        "run", "--quiet", "--no-sandbox", "--output", "../run2", "train.py", cwd=project
    )
    assert ended.returncode == 3, ended.stderr
    assert not (project / "out").exists()
    assert str(project / "out" / "model.pt") in ended.stderr


@pytest.mark.slow
def test_where_landlock_is_used_up_too_nothing_is_started(project):
    """The kernel lets 16 domains lie within each other."""
    (project / "train.py").write_text("open('started', 'w')")
    words = [sys.executable, "-m", "torchdoctor", "run", "--quiet", "train.py"]
    for _ in range(16):
        words = without_namespaces.in_container(words)
    ended = subprocess.run(
        words, cwd=project, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        timeout=300, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "--no-sandbox" in ended.stderr and "Traceback" not in ended.stderr
    assert not (project / "started").exists()


@pytest.mark.parametrize("command", ["run", "gate"])
def test_where_nothing_keeps_a_program_from_the_files_it_is_not_started(
    project, monkeypatch, command
):
    (project / "train.py").write_text("open('started', 'w')")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        name = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *name, *words], cwd=project, check=True)
    monkeypatch.setattr(
        sandbox_module, "trial", lambda sandbox, workload: message("not permitted.")
    )
    against = ["--against", "HEAD"] if command == "gate" else []
    ended = commands.torchdoctor(command, *against, "--quiet", "train.py", cwd=project)
    assert ended.returncode == 2
    assert "--no-sandbox" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (project / "started").exists()
    assert not list((project / "torchdoctor-runs").glob("2*")), "the newest run is another one"


def test_older_kernels_are_asked_for_no_right_that_they_do_not_know():
    """An unknown right makes the kernel refuse all; ioctl on devices must stay free for GPUs."""
    first, second, third, newest = (sandbox_entry.rights_of(x)[1] for x in (1, 2, 3, 9))
    assert first < 1 << 13
    assert second == first | 1 << 13
    assert third == newest == second | 1 << 14
    reading = 1 | 1 << 2 | 1 << 3  # execute, read a file, list a folder
    assert not newest & (reading | 1 << 15)
