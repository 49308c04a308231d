import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torchdoctor.launch import scratch
from torchdoctor.launch.escaped_writes import snapshot
from torchdoctor.launch.scratch import PREFIX, Scratch, choose, remove_tree
from torchdoctor.machine.mounts import Mount, mount_of


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
