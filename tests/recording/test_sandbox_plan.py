import os
import threading

from torchdoctor.launch.escaped_writes import snapshot
from torchdoctor.launch.layer_plan import EXPAND_AT_MOST, Entry, Planner
from torchdoctor.machine import mounts
from torchdoctor.machine.mounts import Mount, read_mounts

MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:31 / /data\\040sets rw,nosuid,nodev - nfs4 server:/x rw
41 27 0:32 / /data\\040sets rw,noexec - ext4 /dev/sdb rw
"""


def entries(**folders):
    table = {"/" + name.replace("_", "/").strip("/"): names for name, names in folders.items()}

    def look(folder):
        names = table.get(folder, [])
        if names is None:
            return None
        prefix = folder.rstrip("/")
        return [
            Entry(path=f"{prefix}/{name.rstrip('>')}", kind="link", target="usr/bin")
            if name.endswith(">")
            else Entry(
                path=f"{prefix}/{name.rstrip('/')}", kind="folder" if name.endswith("/") else "file"
            )
            for name in names
        ]

    return look


def plan(mounts, userns=False, scratch="/var/tmp/s/1", listed=None, **more):
    planner = Planner(
        mounts=[Mount(path="/", kind="ext4"), *mounts],
        scratch=scratch,
        userns=userns,
        entries=listed or entries(_=["home/", "var/", "dev/", "proc/", "bin>", "swapfile"]),
        **more,
    )
    return {step[1]: step for step in planner.plan()}


def test_mounts_are_read_with_their_names_and_the_visible_one_of_two_on_one_path():
    mounts = {mount.path: mount for mount in read_mounts(MOUNTINFO)}
    assert sorted(mounts) == ["/", "/data sets", "/dev", "/dev/shm", "/proc"]
    assert mounts["/data sets"].kind == "ext4"
    assert mounts["/data sets"].flags == ["noexec"]
    assert mounts["/"].takes_writes
    assert not mounts["/proc"].takes_writes


def test_a_mount_that_hangs_is_not_looked_at(monkeypatch):
    """A network mount whose server was gone hung a run on another disk without a word."""
    looked = []
    monkeypatch.setattr("os.path.isdir", looked.append)
    bound = "42 27 0:31 /etc/hosts /etc/hosts rw - ext4 /dev/vda rw\n"
    files = {mount.path: mount.is_file for mount in read_mounts(MOUNTINFO + bound)}
    assert looked == ["/etc/hosts"] and files["/etc/hosts"] and not files["/data sets"]


def test_a_mount_that_does_not_answer_is_left_out_with_all_below(monkeypatch, tmp_path):
    """Three trials of a sandbox hung on it, and then the run itself, without a word."""
    (tmp_path / "dead").mkdir()
    (tmp_path / "file").write_text("")
    kinds = {"": "ext4", "/dead": "nfs4", "/dead/below": "ext4", "/deadline": "fuse.sshfs"}
    listed = [Mount(path=f"{tmp_path}{path}", kind=kind) for path, kind in kinds.items()]
    server, lstat = threading.Event(), os.lstat

    def waits(path):
        return server.wait() if path == f"{tmp_path}/dead" else lstat(path)

    monkeypatch.setattr(mounts, "_listed", lambda: listed)
    monkeypatch.setattr(mounts, "ANSWERS_WITHIN_S", 0.2)
    monkeypatch.setattr(mounts.os, "lstat", waits)
    mounts.unanswered.cache_clear()
    try:
        assert mounts.mounts_now() == [listed[0], listed[3]]
        assert snapshot([str(tmp_path)]).files.keys() == {str(tmp_path / "file")}
    finally:
        server.set()
        mounts.unanswered.cache_clear()


def test_every_folder_of_the_root_gets_a_layer_and_links_stay_links():
    steps = plan([Mount(path="/dev", kind="devtmpfs")])
    assert steps["/home"] == ["overlay", "/home", True, [], []]
    assert steps["/dev"] == ["view", "/dev", [], False]
    assert steps["/bin"] == ["link", "/bin", "usr/bin"]
    assert steps["/swapfile"] == ["view", "/swapfile", [], True]
    assert "/proc" not in steps


def test_a_layer_on_disk_never_lies_below_what_it_is_laid_over():
    steps = plan([])
    assert steps["/var"][2] is False
    assert steps["/home"][2] is True


def test_layers_of_the_systems_own_folders_stay_in_memory():
    steps = plan([], listed=entries(_=["usr/", "home/"]))
    assert steps["/usr"] == ["overlay", "/usr", False, [], []]
    assert steps["/home"][2] is True


def test_a_mounted_file_system_gets_a_layer_of_its_own_and_a_read_only_one_none():
    steps = plan(
        [
            Mount(path="/home/a", kind="nfs4", options=("rw", "nosuid")),
            Mount(path="/home/b", kind="ext4", options=("ro",)),
        ]
    )
    assert steps["/home"][0] == "overlay"
    assert steps["/home/a"] == ["overlay", "/home/a", True, ["nosuid"], []]
    assert steps["/home/b"] == ["view", "/home/b", [], False]


def test_a_writable_file_system_below_a_read_only_one_gets_its_layer():
    steps = plan(
        [
            Mount(path="/home", kind="squashfs", options=("ro",)),
            Mount(path="/home/a", kind="ext4", options=("rw",)),
        ]
    )
    assert steps["/home"][0] == "view"
    assert steps["/home/a"][0] == "overlay"


def test_what_is_mounted_below_dev_or_sys_is_left_alone():
    steps = plan([Mount(path="/dev", kind="devtmpfs"), Mount(path="/dev/shm", kind="tmpfs")])
    assert "/dev/shm" not in steps


def test_a_mounted_file_is_shown_read_only():
    mount = Mount(path="/home/resolv.conf", kind="ext4", is_file=True)
    assert plan([mount])["/home/resolv.conf"] == ["view", "/home/resolv.conf", [], True]


def test_an_ordinary_user_gets_folders_with_mounts_below_taken_apart():
    # The kernel refuses a lower layer with locked mounts below it.
    listed = entries(_=["home/"], home=["a/", "b/", "note"])
    steps = plan([Mount(path="/home/a", kind="nfs4")], userns=True, listed=listed)
    # /home does not have to exist here to be planned for.
    assert steps["/home"][0] == "folder"
    assert steps["/home/a"][0] == "overlay"
    assert steps["/home/b"][0] == "overlay"
    assert steps["/home/note"] == ["view", "/home/note", [], True]


def test_a_folder_with_too_many_entries_to_take_apart_is_shown_read_only():
    listed = entries(_=["home/"], home=[f"u{i}/" for i in range(EXPAND_AT_MOST + 1)])
    steps = plan([Mount(path="/home/u1", kind="nfs4")], userns=True, listed=listed)
    assert steps["/home"] == ["view", "/home", [], True]
    assert steps["/home/u1"][0] == "overlay"
    assert len(steps) == 2


def test_what_an_ordinary_user_must_have_in_the_layer_beforehand_is_part_of_its_step():
    steps = plan([], userns=True, foreign=frozenset({"/home/shared"}))
    assert steps["/home"][4] == ["shared"]
