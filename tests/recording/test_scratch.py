import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from launching import launch_script

from torchdoctor.bench.record import Recorder
from torchdoctor.launch import scratch
from torchdoctor.launch.escaped_writes import snapshot
from torchdoctor.launch.launch import Program, launch
from torchdoctor.launch.launch_spec import UNTOUCHED
from torchdoctor.launch.layer_limits import Room, full, full_layer
from torchdoctor.launch.layer_words import in_words
from torchdoctor.launch.sandbox import Command, Sandbox
from torchdoctor.launch.scratch import PREFIX, Scratch, choose, remove_tree
from torchdoctor.machine.mounts import Mount, mount_of
from torchdoctor.schema import Workload
from torchdoctor.schema.errors import ProgramFailed, UsageError


def test_a_folder_that_an_overlay_worked_in_is_removed(tmp_path):
    work = tmp_path / "a" / "work" / "work"
    work.mkdir(parents=True)
    (work / "f").write_text("x")
    work.chmod(0)
    assert remove_tree(tmp_path / "a")


def test_scratch_folders_come_and_go(tmp_path):
    store = Scratch(tmp_path)
    first, second = store.new(), store.new()
    (first / "f").write_text("x")
    assert first != second
    other = Scratch(tmp_path)
    assert store.folder.exists(), "a folder in use was taken for a stale one"
    store.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_runs_that_start_at_the_same_moment_leave_each_other_their_folders(tmp_path):
    """A folder that was made and not locked yet looked as if it had been left behind."""

    def come_and_go(_):
        for _ in range(60):
            store = Scratch(tmp_path)
            store.new().joinpath("f").write_text("x")
            store.close()

    with ThreadPoolExecutor(8) as together:
        list(together.map(come_and_go, range(8)))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_nobody_holds_any_more_is_removed_by_the_next(tmp_path):
    stale = tmp_path / f"{PREFIX}{os.getuid()}-abc"
    (stale / "1").mkdir(parents=True)
    unrelated = tmp_path / "torchdoctor-runs"
    unrelated.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / f"{PREFIX}{os.getuid()}-link").symlink_to(outside)
    store = Scratch(tmp_path)
    assert not stale.exists()
    assert unrelated.exists()
    assert outside.exists()
    store.close()


def test_the_disk_with_most_room_is_chosen_among_those_that_can_hold_layers(tmp_path, monkeypatch):
    rooms = {"small": 1, "large": 10, "container": 99, "memory": 50}
    folders = {name: tmp_path / name for name in rooms}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setattr(scratch, "candidates", lambda beside: list(folders.values()))

    class Usage:
        def __init__(self, folder):
            self.free = rooms[folder.name] << 30

    monkeypatch.setattr(shutil, "disk_usage", Usage)
    kinds = {"/": "overlay", "small": "ext4", "large": "xfs", "memory": "tmpfs"}
    mounts = [Mount(path=str(folders.get(path, path)), kind=kind) for path, kind in kinds.items()]
    assert choose(None, mounts) == (folders["large"], True)
    assert choose(None, [Mount(path="/", kind="overlay")])[1] is False
    rooms["small"] = 10
    assert choose(None, mounts) == (folders["small"], True), "the first of equals"


def test_a_scratch_folder_apart_from_the_working_folder_is_preferred(monkeypatch):
    places = [Path("/var/tmp"), Path("/tmp")]
    monkeypatch.setattr(scratch, "candidates", lambda beside: places)
    root = [Mount(path="/", kind="ext4")]
    assert choose(None, root, "/home/me")[0] == Path("/var/tmp")
    assert choose(None, root, "/var/tmp/project")[0] == Path("/tmp")


def test_the_innermost_mount_tells_the_file_system(tmp_path):
    kinds = {"/": "ext4", str(tmp_path.parent): "nfs", str(tmp_path) + "-other": "tmpfs"}
    mounts = [Mount(path=path, kind=kind) for path, kind in kinds.items()]
    inner = mount_of(str(tmp_path), mounts)
    assert inner is not None and inner.kind == "nfs"


def test_changes_below_a_folder_are_named(tmp_path):
    for name in ("same", "changed", "gone"):
        (tmp_path / name).write_text(name)
    (tmp_path / "skipped").mkdir()
    before = snapshot([str(tmp_path)], skip=[str(tmp_path / "skipped")])
    (tmp_path / "changed").write_text("longer than before")
    (tmp_path / "gone").unlink()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "new").write_text("x")
    (tmp_path / "skipped" / "new").write_text("x")
    after = snapshot([str(tmp_path)], skip=[str(tmp_path / "skipped")])
    expected = [str(tmp_path / name) for name in ("changed", "deep/er/new", "gone")]
    assert after.changed_since(before) == expected
    assert before.changed_since(before) == []


def test_of_what_was_not_looked_at_nothing_is_said(tmp_path, monkeypatch):
    from torchdoctor.launch import escaped_writes

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "f").write_text("x")
    monkeypatch.setattr(escaped_writes, "LOOK_AT_MOST", 1)
    before = snapshot([str(tmp_path)])
    monkeypatch.setattr(escaped_writes, "LOOK_AT_MOST", 100)
    assert not before.whole
    assert snapshot([str(tmp_path)]).changed_since(before) == []


@pytest.fixture
def small_disk():
    """Return a folder on a file system of its own, of 80 MiB."""
    folder = Path(tempfile.mkdtemp(prefix="torchdoctor-small-", dir="/var/tmp"))
    mounting = ["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(folder)]
    mounted = sys.platform == "linux" and os.geteuid() == 0
    try:
        if not mounted or subprocess.run(mounting, capture_output=True).returncode != 0:
            pytest.skip("nothing can be mounted here")
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=True)
    finally:
        folder.rmdir()


FILLS = """
import os, time
try:
    with open("checkpoint.pt", "wb", buffering=0) as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
except OSError:
    time.sleep(1)
    CLEAN_UP
    raise
"""


@pytest.mark.parametrize("mode", ["overlay", "landlock"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_full_scratch_disk_is_not_blamed_on_the_program(
    tmp_path, small_disk, monkeypatch, mode, kept
):
    """The advice was to make it run without torchdoctor, where it ran."""
    monkeypatch.setattr(scratch, "candidates", lambda beside: [small_disk])
    source = FILLS.replace("CLEAN_UP", "pass" if kept else "os.remove('checkpoint.pt')")
    (tmp_path / "project").mkdir()
    (tmp_path / "run").mkdir()
    script = tmp_path / "project" / "train.py"
    script.write_text(source)
    workload = Workload(
        command=[sys.executable, str(script)], cwd=str(tmp_path / "project"), script=str(script)
    )
    try:
        sandbox = Sandbox.choose(mode)
    except UsageError as error:
        pytest.skip(str(error))
    with sandbox:
        result = launch_script(tmp_path / "project", source, sandbox)
        recorder = Recorder(workload, tmp_path / "run", sandbox, 0, None, 60.0)
        with pytest.raises(ProgramFailed) as raised:
            recorder.observe(None, 1.0, 5.0)
    assert result.full_layer.folder == str(small_disk)
    assert result.full_layer.size_bytes == 80 << 20
    assert str(small_disk) in str(raised.value)
    assert "TMPDIR" in str(raised.value)
    assert "without torchdoctor" not in str(raised.value)


def test_a_disk_that_the_run_folder_shares_is_filled_by_the_scratch_folder_too(
    tmp_path, small_disk, monkeypatch
):
    """Another run folder was asked for, and the program's checkpoints filled the disk again."""
    monkeypatch.setattr(scratch, "candidates", lambda beside: [small_disk])
    (tmp_path / "train.py").write_text(FILLS.replace("CLEAN_UP", "time.sleep(600)"))
    workload = Workload(command=[sys.executable, "train.py"], cwd=str(tmp_path))
    try:
        sandbox = Sandbox.choose("auto")
    except UsageError as error:
        pytest.skip(str(error))
    with sandbox, pytest.raises(UsageError, match="TMPDIR"):
        program = Program(workload=workload, sandbox=sandbox)
        launch(program, UNTOUCHED, small_disk / "launch", timeout_s=60.0)
    assert list(sandbox.store.folder.parent.iterdir()) == [small_disk / "launch"]


def test_a_disk_of_the_users_own_that_is_full_is_no_limit_of_ours(tmp_path, small_disk):
    source = FILLS.replace("CLEAN_UP", "pass")
    source = source.replace("checkpoint.pt", f"{small_disk}/checkpoint.pt")
    (tmp_path / "project").mkdir()
    with Sandbox.choose("none") as sandbox:
        result = launch_script(tmp_path / "project", source, sandbox)
    assert "No space left" in result.output_tail
    assert result.full_layer is None


def test_a_full_layer_in_memory_is_told_from_the_disk():
    disk = Room(folder="/var/tmp", size_bytes=1 << 40, free_bytes=1 << 39)
    memory = Room(folder="", size_bytes=8 << 30, free_bytes=1 << 20)
    said = "OSError: [Errno 28] No space left on device"
    assert full_layer(said, [disk, memory]) == memory
    assert full_layer(said, [disk]) is None
    assert full_layer("ValueError: no", [disk, memory]) is None
    assert full(memory).fact == "scratch-memory-full" and full(disk).fact == "scratch-folder-full"
    assert "8 GiB" in in_words(full(memory))


def test_what_layers_in_memory_have_left_is_told_at_the_end(tmp_path):
    try:
        sandbox = Sandbox.choose("overlay")
    except UsageError as error:
        pytest.skip(str(error))
    command = Command(
        words=["sh", "-c", "head -c 50000000 /dev/zero > /usr/zeros"],
        cwd="/",
        environment=os.environ,
        output=subprocess.DEVNULL,
    )
    with sandbox:
        started = sandbox.start(command, sandbox.new_scratch())
        assert started.wait_s(20)
        sandbox.discard(started)
    if not sandbox.pidns:
        pytest.skip("without a PID namespace nobody stays to tell it")
    if os.access("/usr", os.W_OK):
        assert started.memory.size_bytes - started.memory.free_bytes >= 50_000_000
