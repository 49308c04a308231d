"""The sandbox as it is chosen on this machine; the overlay's tests are skipped without one."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from launching import content_of, launch_script

from torchdoctor.launch import sandbox as sandbox_module
from torchdoctor.launch.sandbox import Sandbox, Started
from torchdoctor.schema import Workload, fact, message, within
from torchdoctor.schema.errors import UsageError

REPOSITORY = Path(__file__).resolve().parents[2]
IMPORTS = (
    "import os\nfrom torchdoctor.launch.sandbox import Sandbox\n"
    "from torchdoctor.launch.sandbox import Command\n"
)
SLEEPER = ["sleep", f"9876{os.getpid()}"]


@pytest.fixture(scope="module")
def overlay():
    try:
        sandbox = Sandbox.choose("overlay")
    except UsageError as error:
        pytest.skip(str(error))
    with sandbox:
        yield sandbox


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "logs").mkdir(parents=True)
    (folder / "old").mkdir()
    (folder / "old" / "a.txt").write_text("a")
    (folder / "logs" / "log.csv").write_text("step,loss\n0,1.0\n")
    (folder / "model.pt").write_bytes(b"precious")
    (folder / "data.bin").write_bytes(bytes(8192))
    (folder / "unwanted").write_text("delete me")
    (folder / "link").symlink_to("model.pt")
    return folder


WRITES = r"""
import mmap, os, pathlib, shutil, sqlite3, subprocess, sys, tempfile
with open("model.pt", "wb") as f: f.write(b"overwritten")
with open("logs/log.csv", "a") as f: f.write("1,0.5\n")
os.unlink("unwanted")
os.rename("old/a.txt", "logs/b.txt")
os.makedirs("checkpoints/deep", exist_ok=True)
with open("data.bin", "r+b") as f, mmap.mmap(f.fileno(), 0) as m: m[:4] = b"mmap"
db = sqlite3.connect("runs.db")
db.execute("create table t (x)"); db.execute("insert into t values (7)"); db.commit()
assert db.execute("select x from t").fetchone() == (7,)
shell = "dd if=/dev/zero of=big.bin bs=1M count=3 status=none; echo hi > shell.txt"
subprocess.run(shell, shell=True, check=True)
os.link("model.pt", "hard")
os.symlink("model.pt", "soft")
os.chmod("logs/log.csv", 0o600)
tmp = tempfile.mkstemp(dir="checkpoints")[1]
os.replace(tmp, "checkpoints/deep/final")
try:
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR); os.write(fd, b"x"); os.close(fd)
except OSError as e: print("tmpfile", e.errno)
shutil.rmtree("old")
assert open("model.pt", "rb").read() == b"overwritten"
assert open("logs/log.csv").read().endswith("1,0.5\n")
assert open("data.bin", "rb").read(4) == b"mmap"
assert os.path.getsize("big.bin") == 3 << 20
assert open("shell.txt").read() == "hi\n"
assert open("logs/b.txt").read() == "a"
assert not os.path.exists("unwanted") and not os.path.exists("old")
assert open("link", "rb").read() == b"overwritten"
print("all read back")
"""


def test_every_kind_of_write_reads_back_inside_and_leaves_the_files_as_they_were(overlay, project):
    (project / "train.py").write_text(WRITES)
    before = content_of(project)
    result = launch_script(project, WRITES, overlay)
    assert result.output_tail.endswith("all read back\n")
    assert (result.ended, result.exit_code) == ("exited", 0)
    assert content_of(project) == before
    assert result.escaped_writes == []


def test_a_c_program_writes_into_the_layer_too(overlay, project):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = (
        '#include <stdio.h>\nint main(void){FILE*f=fopen("c.txt","w");fputs("c",f);fclose(f);}\n'
    )
    (project / "w.c").write_text(source)
    subprocess.run([compiler, "w.c", "-o", "w"], cwd=project, check=True)
    script = 'import subprocess; subprocess.run(["./w"], check=True); print(open("c.txt").read())'
    (project / "train.py").write_text(script)
    before = content_of(project)
    assert launch_script(project, script, overlay).output_tail == "c\n"
    assert content_of(project) == before


@pytest.mark.slow
def test_checkpoints_of_torch_are_thrown_away(overlay, project):
    pytest.importorskip("torch")
    script = (
        "import torch\ntorch.save({'w': torch.ones(1000)}, 'model.pt')\n"
        "print(torch.load('model.pt')['w'].sum().item())\n"
    )
    (project / "train.py").write_text(script)
    before = content_of(project)
    result = launch_script(project, script, overlay)
    assert result.output_tail.strip().splitlines()[-1] == "1000.0"
    assert content_of(project) == before


def test_temporary_and_home_folders_are_covered_too(overlay, project):
    name = f"torchdoctor-test-{os.getpid()}"
    script = (
        "import os\n"
        f"for p in ('/tmp/{name}', '/var/tmp/{name}', os.path.expanduser('~/{name}')):\n"
        "    open(p, 'w').write('x'); print(open(p).read(), end='')\n"
    )
    assert launch_script(project, script, overlay).output_tail == "xxx"
    for folder in (Path("/tmp"), Path("/var/tmp"), Path.home()):
        assert not (folder / name).exists()


def test_the_program_is_the_same_user_in_the_same_folder_with_the_same_environment(
    overlay, project, monkeypatch
):
    monkeypatch.setenv("TORCHDOCTOR_TEST_VALUE", "kept as it is")
    script = (
        "import getpass, os, sys\n"
        "print(os.getuid(), os.getgid(), getpass.getuser(), os.getcwd(), os.getppid() == 1,\n"
        "      os.environ['TORCHDOCTOR_TEST_VALUE'], sys.argv[1:], sep='|')\n"
        "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    output = launch_script(project, script, overlay, "--lr", "1").output_tail.splitlines()
    user = subprocess.run(
        [sys.executable, "-c", "import getpass; print(getpass.getuser())"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    expected = f"{os.getuid()}|{os.getgid()}|{user}|{project}|False|kept as it is|['--lr', '1']"
    assert output == [expected, "True"]


def test_an_environment_without_a_locale_is_not_given_one(overlay, project, monkeypatch):
    # A Python in the C locale adds LC_CTYPE to its own environment, and so would the entry's.
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    script = "print(b'LC_CTYPE=' in open('/proc/self/environ', 'rb').read())"
    assert launch_script(project, script, overlay).output_tail == "False\n"


def test_services_on_localhost_and_on_sockets_outside_are_reached(overlay, project, tmp_path):
    tcp = socket.create_server(("127.0.0.1", 0))
    path = str(Path("/tmp") / f"torchdoctor-{os.getpid()}.sock")
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(path)
    unix.listen()
    try:
        for server in (tcp, unix):
            threading.Thread(target=lambda s=server: s.accept()[0].sendall(b"hello")).start()
        script = (
            "import socket\n"
            f"print(socket.create_connection(('127.0.0.1', {tcp.getsockname()[1]})).recv(9))\n"
            f"s = socket.socket(socket.AF_UNIX); s.connect('{path}'); print(s.recv(9))\n"
            "s = socket.socket(socket.AF_UNIX); s.bind('/tmp/new.sock'); s.listen()\n"
            "c = socket.socket(socket.AF_UNIX); c.connect('/tmp/new.sock'); print('own')\n"
        )
        output = launch_script(project, script, overlay).output_tail
        assert output.splitlines() == ["b'hello'", "b'hello'", "own"]
    finally:
        tcp.close()
        unix.close()
        Path(path).unlink()


def test_shared_memory_is_private_and_as_large_as_outside(overlay, project):
    script = (
        "import os\nfrom multiprocessing import shared_memory\n"
        "s = shared_memory.SharedMemory(create=True, size=1 << 20, name='torchdoctor_left')\n"
        "z = os.statvfs('/dev/shm'); print(z.f_blocks * z.f_frsize, flush=True)\nos._exit(0)\n"
    )
    size = os.statvfs("/dev/shm")
    output = launch_script(project, script, overlay).output_tail
    assert output == f"{size.f_blocks * size.f_frsize}\n"
    assert not Path("/dev/shm/torchdoctor_left").exists()


def test_data_that_is_kept_in_shared_memory_can_be_read(overlay, project):
    kept = Path("/dev/shm") / f"torchdoctor-data-{os.getpid()}"
    kept.mkdir()
    file = kept.with_suffix(".bin")
    try:
        (kept / "a").write_text("a")
        file.write_text("b")
        script = (
            f"import os; os.chdir({str(kept)!r})\n"
            f"print(open('a').read(), open({str(file)!r}).read())\n"
            "open('a', 'w').write('changed'); print(open('a').read())\n"
        )
        assert launch_script(project, script, overlay).output_tail == "a b\nchanged\n"
        assert (kept / "a").read_text() == "a"
    finally:
        shutil.rmtree(kept)
        file.unlink()


def test_the_channel_is_real_and_nothing_else_of_the_launch_folder(overlay, project, tmp_path):
    script = (
        "import json, os\n"
        "plan = json.load(open(os.environ['TORCHDOCTOR_PLAN']))\n"
        "open(plan['channel'] + '/events-1.bin', 'w').write('kept')\n"
        "open(plan['channel'] + '/../not-kept', 'w').write('x')\n"
    )
    result = launch_script(project, script, overlay)
    assert (result.channel / "events-1.bin").read_text() == "kept"
    assert sorted(p.name for p in (tmp_path / "launch").iterdir()) == [
        "channel",
        "output.txt",
        "plan.json",
    ]


def test_nothing_of_it_stays_mounted_or_on_disk(overlay, project):
    mounts = Path("/proc/self/mountinfo").read_text()
    script = "import os; os.makedirs('x/y'); open('x/y/z', 'w').write('x' * 100000)"
    launch_script(project, script, overlay)
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert list(overlay.store.folder.iterdir()) == []


def test_a_large_file_goes_to_disk_not_to_memory(overlay, project):
    if not overlay.on_disk or str(project).startswith(str(overlay.store.folder.parent)):
        pytest.skip("no disk for the layers, or the project lies beside the scratch folder")
    script = (
        "import os\nopen('f', 'w').write('x')\n"
        "line = [l for l in open('/proc/self/mounts') if l.split()[1] == '/tmp'][-1]\n"
        "print('upper/' in line)\n"
    )
    if not str(project).startswith("/tmp/"):
        pytest.skip("the project is not in /tmp")
    assert launch_script(project, script, overlay).output_tail == "True\n"


def test_a_command_that_does_not_exist_is_said_so(overlay, tmp_path):
    from torchdoctor.launch.launch import Program, launch
    from torchdoctor.launch.launch_spec import UNTOUCHED

    workload = Workload(command=["./no-such-program"], cwd=str(tmp_path))
    with pytest.raises(UsageError, match="no-such-program"):
        program = Program(workload=workload, sandbox=overlay)
        launch(program, UNTOUCHED, tmp_path / "launch", timeout_s=20)


def test_without_namespaces_landlock_keeps_the_files(monkeypatch):
    if sys.platform != "linux":
        pytest.skip("tries the Linux way")
    monkeypatch.setattr(
        sandbox_module,
        "trial",
        lambda sandbox, workload: message("not permitted.") if sandbox.mode == "overlay" else None,
    )
    with Sandbox.choose("auto") as sandbox:
        assert sandbox.mode == "landlock"
        assert sandbox.doubts[0] == fact("no-overlay", why=within(message("not permitted.")))
        folder = sandbox.store.folder
    assert not folder.exists()
    with pytest.raises(UsageError, match="not permitted"):
        Sandbox.choose("overlay")


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_without_any_layer_nothing_is_chosen_and_the_way_on_is_named(monkeypatch, platform):
    """A program was started whose shell commands removed the user's files."""
    if sys.platform != "linux":
        pytest.skip("tries the Linux way")
    monkeypatch.setattr(
        sandbox_module, "trial", lambda sandbox, workload: message("not permitted.")
    )
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(UsageError, match="--no-sandbox"):
        Sandbox.choose("auto")
    with Sandbox.choose("none") as sandbox:
        assert sandbox.mode == "none"


@pytest.mark.parametrize("mode", ["overlay", "landlock"])
def test_a_folder_whose_name_is_no_text_gets_its_layer_too(tmp_path, mode):
    """The trial could not print its name: the weaker kind of sandbox was taken for it."""
    try:
        Sandbox.choose(mode).close()
    except UsageError as error:
        pytest.skip(str(error))
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/b\xff")
    try:
        os.mkdir(folder)  # noqa: PTH102 - a name that is no text
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    workload = Workload(command=["true"], cwd=folder)
    with Sandbox.choose(mode, workload=workload) as sandbox:
        assert sandbox.mode == mode


def test_a_folder_without_a_layer_keeps_its_whole_name(tmp_path):
    """Of "runs: old" only "runs" was asked whether it could be written to, and nothing was said."""
    folder = f"{tmp_path}/runs: old"
    reading, writing = os.pipe()
    event = {"event": "limited", "path": folder, "reason": "no such kind of layer"}
    os.write(writing, json.dumps(event).encode() + b"\n")
    os.close(writing)
    started = Started(popen=None, status_fd=reading, folder=tmp_path)
    started.read_status()
    assert [limit.path for limit in started.limits] == [folder]


def test_an_unknown_mode_is_refused():
    with pytest.raises(UsageError, match="overlay"):
        Sandbox.choose("chroot")


@pytest.mark.slow
@pytest.mark.parametrize("network", [True, False])
def test_it_works_for_an_ordinary_user(tmp_path, network):
    """By an ordinary user's rules: a user namespace, and files that belong to somebody else."""
    python = "/usr/bin/python3"
    if os.geteuid() != 0 or shutil.which("setpriv") is None or not Path(python).exists():
        pytest.skip("needs root to become somebody else, and a Python that everybody may run")
    folder = Path("/tmp") / f"torchdoctor-user-{os.getpid()}"
    (folder / "package").mkdir(parents=True)
    shutil.copytree(REPOSITORY / "torchdoctor", folder / "package" / "torchdoctor")
    home = folder / "home"
    shared = folder / "shared"
    for made in (home, shared):
        made.mkdir()
    (home / "mine").write_text("mine")
    (shared / "log.txt").write_text("group's\n")
    os.chown(shared / "log.txt", 0, 33)
    (shared / "log.txt").chmod(0o664)
    os.chown(shared, 0, 33)
    shared.chmod(0o2775)
    for path in (home, home / "mine"):
        os.chown(path, 65534, 65534)
    driver = (
        f"{IMPORTS}with Sandbox.choose('auto', network={network}) as s:\n"
        "    print(s.mode, s.userns, flush=True)\n"
        "    f = s.new_scratch()\n"
        "    command = 'echo x > mine; echo y > new; echo z >> ../shared/log.txt;' \\\n"
        "              'echo n > ../shared/new; cat mine new ../shared/log.txt; id -u'\n"
        "    command = Command(words=['sh', '-c', command], cwd=os.getcwd(), stdin=0, output=1,\n"
        "                      environment=os.environ)\n"
        "    st = s.start(command, f, interest=['../shared'])\n"
        "    st.wait_s(20); s.discard(st); print(st.exit_code, st.failure)\n"
    )
    try:
        before = content_of(folder)
        ended = subprocess.run(
            ["setpriv", "--reuid", "65534", "--regid", "65534", "--groups", "65534,33", python,
             "-c", driver],
            cwd=home, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1",
                 "PYTHONPATH": str(folder / "package")},
        )  # fmt: skip
        lines = ended.stdout.splitlines()
        if lines[:1] == ["landlock False"]:
            pytest.skip("user namespaces are not permitted here")
        assert lines == ["overlay True", "x", "y", "group's", "z", "65534", "0 None"], ended.stderr
        assert content_of(folder) == before
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
def test_a_killed_tool_leaves_no_process_and_its_scratch_folder_goes_with_the_next(
    overlay, tmp_path
):
    driver = (
        f"{IMPORTS}s = Sandbox.choose('overlay'); f = s.new_scratch()\n"
        f"command = Command(words={SLEEPER}, cwd='/tmp', environment=os.environ, output=1)\n"
        "st = s.start(command, f)\n"
        "while st.program_pid is None: st.read_status()\n"
        "print(s.store.folder, flush=True); os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", driver], capture_output=True, text=True, cwd=REPOSITORY,
        stdin=subprocess.DEVNULL, timeout=600,
    )  # fmt: skip
    left = Path(ended.stdout.splitlines()[0])
    psutil.wait_procs(_sleepers(), timeout=10)
    assert _sleepers() == []
    Sandbox.choose("overlay").close()
    assert not left.exists()


def _sleepers():
    found = []
    for process in psutil.process_iter():
        try:
            if process.cmdline() == SLEEPER:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="hiding /proc needs root")
def test_without_proc_nothing_is_started_and_the_way_on_is_named(project):
    script = (
        "mount -t tmpfs tmpfs /proc && exec $0 -c 'from torchdoctor.launch.sandbox import Sandbox\n"
        "from torchdoctor.schema.errors import UsageError\n"
        'try: Sandbox.choose("auto")\nexcept UsageError as error: print(error)\''
    )
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "mount -t proc" in ended.stdout, ended.stderr
