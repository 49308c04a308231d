"""Runs one command inside namespaces, as the parent of every launched program: small, stdlib only.

    python -I -S sandbox_entry.py settings.json

It mounts what the settings say (`layer_plan.py`), moves into the new root and executes the command,
in its own environment; or it only takes the right to write from it (Landlock). JSON lines on
`status_fd` tell what happens: {"event": ...}.
"""

import base64
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

CLONE_NEWNS = 0x20000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
SIOCSIFADDR = 0x8916
SIOCSIFNETMASK = 0x891C
IFF_UP_AND_RUNNING = 0x1 | 0x40
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
SETUP_FAILED = 125
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
FLAGS = {"ro": MS_RDONLY, "nosuid": MS_NOSUID, "nodev": MS_NODEV, "noexec": MS_NOEXEC}

_libc = ctypes.CDLL(None, use_errno=True)  # without a wrapper of pivot_root
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}

# Landlock: the same numbers on every machine. Rights are bits; reading is none of those handled,
# nor is IOCTL_DEV, without which no GPU works.
_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_WRITE_FILE = 1 << 1
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_ALL_WRITING = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))  # remove and make anything


def _check(result: int, action: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Call mount(2); raise OSError where it fails."""
    encoded = [None if s is None else os.fsencode(s) for s in (source, target, kind, data or None)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(result, f"mount {kind or 'bind'} on {target}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _unshare(settings: dict[str, Any]) -> None:
    uid = os.getuid()
    gid = os.getgid()
    flags = CLONE_NEWNS
    for name, flag in (
        ("userns", CLONE_NEWUSER),
        ("pidns", CLONE_NEWPID),
        ("ipcns", CLONE_NEWIPC),
        ("netns", CLONE_NEWNET),
    ):
        if settings[name]:
            flags |= flag
    _check(_libc.unshare(flags), "unshare")
    if settings["userns"]:
        # The same ids inside as outside: nothing that the program can see has changed.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    if settings["netns"]:
        _start_loopback(settings["own_addresses"])


def _start_loopback(own_addresses: list[str]) -> None:
    """Start the loopback device, the only one of a new network namespace.

    It also gets the machine's own addresses, so that processes of a program that meet under the
    machine's name find each other.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        fcntl.ioctl(link, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP_AND_RUNNING))
        for number, address in enumerate(own_addresses):
            for request, text in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.255")):
                place = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))
                fcntl.ioctl(link, request, struct.pack("16s16s", b"lo:%d" % number, place))


class Root:
    """The new root file system while it is being built, below `top`."""

    def __init__(self, settings: dict[str, Any], say: Any) -> None:
        self.top: str = settings["root"]
        self.memory: str = settings["memory"]
        self.upper: str | None = settings["upper"]  # folder on disk, or None: all in memory
        self.userns: bool = settings["userns"]
        self.say = say
        self.layers = 0
        mount("tmpfs", self.top, "tmpfs", 0, "mode=755")
        mount("tmpfs", self.memory, "tmpfs", 0, "mode=700")

    def inside(self, path: str) -> str:
        """Return where `path` of the finished sandbox lies now."""
        return self.top + path

    def build(self, steps: list[list[Any]]) -> None:
        """Carry out the plan; where no layer can be laid, the folder is shown read-only."""
        for name, path, *rest in steps:
            if not self.attempt(name, path, *rest) and name == "overlay":
                self.attempt("view", path, [], True)

    def attempt(self, name: str, path: str, *rest: Any) -> bool:
        """Carry out one step; return False, and say why, where it fails."""
        try:
            getattr(self, f"do_{name}")(path, *rest)
        except OSError as error:
            self.say(event="limited", path=path, reason=str(error))
            return False
        return True

    def do_folder(self, path: str, mode: int) -> None:
        """Make an empty folder of our own."""
        os.makedirs(self.inside(path), exist_ok=True)
        os.chmod(self.inside(path), mode)

    def do_link(self, path: str, target: str) -> None:
        """Make a symbolic link as outside."""
        os.symlink(target, self.inside(path))

    def _mount_point(self, path: str) -> str:
        target = self.inside(path)
        if not os.path.lexists(target):
            if os.path.isdir(path):
                os.mkdir(target, 0o755)
            else:
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        return target

    def do_overlay(self, path: str, on_disk: bool, flags: list[str], before: list[str]) -> None:
        """Mount the folder as it is, with a layer on top that takes every write.

        `before`: what (relative) is put into the layer first, as its id is not mapped in here.
        """
        self.layers += 1
        store = self.upper if on_disk and self.upper else self.memory
        layer = f"{store}/{self.layers}"
        upper = f"{layer}/upper"
        work = f"{layer}/work"
        os.makedirs(upper)
        os.mkdir(work)
        self._same_access(path, upper)
        for relative in before:
            self.attempt("copy", os.path.join(path, relative), os.path.join(upper, relative))
        target = self._mount_point(path)
        lower = path
        descriptor = None
        if any(c in path for c in ":,\\"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            lower = f"/proc/self/fd/{descriptor}"
        # redirect_dir: without it, renaming a folder that existed before fails with EXDEV.
        extra = "userxattr" if self.userns else "redirect_dir=on"
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        bits = sum(FLAGS[flag] for flag in flags)
        try:
            mount("overlay", target, "overlay", bits, f"{options},{extra}")
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def do_copy(self, path: str, made: str) -> None:
        """Copy a folder alone, or a file, with its times."""
        if os.path.isdir(path):
            os.makedirs(made, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(made), exist_ok=True)
            shutil.copyfile(path, made)
        self._same_access(path, made)
        status = os.stat(path)
        os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _same_access(self, source: str, made: str) -> None:
        status = os.stat(source)
        if not self.userns and os.geteuid() == 0:
            os.chown(made, status.st_uid, status.st_gid)
        # After the chown, which clears set-id bits.
        os.chmod(made, status.st_mode & 0o7777)

    def do_view(self, path: str, flags: list[str], read_only: bool) -> None:
        """Mount the real thing, with all that is mounted below; `flags` are those of its mount."""
        target = self._mount_point(path)
        mount(path, target, None, MS_BIND | MS_REC)
        if read_only:
            bits = sum(FLAGS[flag] for flag in flags) | MS_RDONLY
            mount(None, target, None, MS_REMOUNT | MS_BIND | bits)

    def do_empty(self, path: str, size: int, mode: int) -> None:
        """Mount a file system in memory; `size` in bytes."""
        options = f"mode={mode:o},size={size}"
        mount("tmpfs", self._mount_point(path), "tmpfs", MS_NOSUID | MS_NODEV, options)

    def do_proc(self, path: str, below: list[str]) -> None:
        """Mount a /proc of the new PID namespace, masked as the old one was."""
        mount("proc", self._mount_point(path), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        for masked in below:
            self.attempt("view", masked, [], False)

    def enter(self) -> None:
        """Make it the root of this process; the old root can no longer be reached."""
        os.chdir(self.top)
        # pivot_root(".", ".") stacks the old root over the new one, from where it is detached.
        number = _PIVOT_ROOT.get(os.uname().machine, -1)
        _check(_libc.syscall(number, b".", b"."), "pivot_root")
        _check(_libc.umount2(b".", MNT_DETACH), "umount of the old root")
        os.chdir("/")


def rights_of(version: int) -> tuple[int, int]:
    """Return the rights of Landlock to write a file, and those to change anything in a folder."""
    files = _WRITE_FILE | (_TRUNCATE if version >= 3 else 0)
    # Before version 2 nothing moves from one folder into another.
    return files, files | _ALL_WRITING | (_REFER if version >= 2 else 0)


def forbid_writing(writable: list[tuple[str, bool]]) -> int:
    """Forbid this process and all that it starts to write elsewhere; return Landlock's version.

    `writable`: paths, and whether files may be made and removed below, not only written.
    """
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    _check(min(version, 0), "Landlock")
    files, everything = rights_of(version)
    handled = struct.pack("=Q", everything)
    rules = _libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    _check(min(rules, 0), "landlock_create_ruleset")
    for path, whole in writable:
        if not os.path.exists(path):
            continue
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", everything if whole else files, descriptor)
        _check(_libc.syscall(_ADD_RULE, rules, 1, rule, 0), f"landlock_add_rule for {path}")
        os.close(descriptor)
    # Asked for by the kernel: no set-user-id program may undo it.
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _check(_libc.syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)
    return int(version)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _make_folder(path: str) -> None:
    if not os.path.isdir(path):
        _make_folder(os.path.dirname(path))
        _remove(path)  # a file in its place
        os.mkdir(path)


def replace_contents(contents: dict[str, str | None], links: list[str]) -> None:
    """Replace files in the new root: base64, of `links` their target, None: no file."""
    there = {path: text for path, text in contents.items() if text is not None}
    # First what is gone: a file may have become a folder, or stand where a link to one stood.
    for path in contents.keys() - there.keys():
        _remove(path)
    for path, text in there.items():
        _make_folder(os.path.dirname(path))
        if path in links:
            _remove(path)
            os.symlink(text, path)
            continue
        try:
            descriptor = os.open(path, _WRITING, 0o644)
        except OSError:  # a link, a folder, or of an id that is not mapped in here
            _remove(path)
            descriptor = os.open(path, _WRITING, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.b64decode(text))


def _execute(settings: dict[str, Any], environment: dict[bytes, bytes], say: Any) -> NoReturn:
    """Become the user's command. Python's own signal settings are taken back first."""
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.chdir(settings["cwd"])
        os.execvpe(settings["command"][0], settings["command"], environment)
    except OSError as error:
        say(event="exec-failed", errno=error.errno, reason=str(error))
    os._exit(SETUP_FAILED)


def _wait(pid: int) -> int:
    """Wait for one child and bury all others on the way. Returns its raw wait status."""
    while True:
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return SETUP_FAILED << 8
        if ended == pid:
            return status


def _say_room(memory: int, say: Any) -> None:
    """Tell how full the layers in memory are: nobody else sees them, and they go with us."""
    disk = os.fstatvfs(memory)
    say(event="memory", size=disk.f_blocks * disk.f_frsize, free=disk.f_bavail * disk.f_frsize)


def _as_init(
    settings: dict[str, Any], environment: dict[bytes, bytes], memory: int, say: Any
) -> NoReturn:
    """Be PID 1 of the namespace: when it ends, the kernel kills every process in it.

    Between it and the program stands one more process, so that the program's parent is not
    PID 1: some programs take that for having been orphaned.
    """
    middle = os.fork()
    if middle == 0:
        program = os.fork()
        if program == 0:
            os.setsid()
            _execute(settings, environment, say)
        say(event="started", program=program)
        say(event="exit", status=_wait(program))
        os._exit(0)
    _wait(middle)
    _say_room(memory, say)
    os._exit(0)


def _forked(
    settings: dict[str, Any], environment: dict[bytes, bytes], memory: int, say: Any
) -> NoReturn:
    """Be PID 1 of a namespace that a warm image forks the program into, until it has ended."""
    reader, writer = os.pipe()
    kinds = ["user"] * settings["userns"] + ["mnt", "pid"] + ["ipc"] * settings["ipcns"]
    kinds += ["net"] * settings["netns"]
    spaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds]
    variables = {os.fsdecode(name): os.fsdecode(text) for name, text in environment.items()}
    launch = {"environment": variables, "cwd": settings["cwd"], "userns": settings["userns"]}
    with socket.socket(fileno=settings["image"][0]) as link:
        files = [settings["status_fd"], 0, 1, writer, *spaces]
        socket.send_fds(link, [json.dumps(launch).encode()], files)
    os.close(writer)
    with open(reader, "rb") as pipe:
        middle = pipe.read()  # to its end: then it is this process's child
    if not middle:
        raise OSError("the warm image could not be forked")
    _wait(int(middle))
    _say_room(memory, say)
    os._exit(0)


def _initial_environment() -> dict[bytes, bytes]:
    # Not os.environ: this interpreter adds LC_CTYPE to its own when the locale is "C".
    with open("/proc/self/environ", "rb") as file:
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
        return {name: value for name, _, value in pairs}


def _begin(settings: dict[str, Any], environment: dict[bytes, bytes], say: Any) -> NoReturn:
    """Become the command without a layer, allowed to write to a few folders or anywhere."""
    if settings["writable"] is not None:
        try:
            say(event="landlock", version=forbid_writing(settings["writable"]))
        except OSError as error:
            say(event="failed", errno=error.errno, reason=error.strerror or str(error))
            os._exit(SETUP_FAILED)
    say(event="started", program=os.getpid())
    _execute(settings, environment, say)


def main() -> None:
    """Read the settings, build what they say, run the command."""
    with open(sys.argv[1], encoding="utf-8") as file:
        settings = json.load(file)
    status_fd = settings["status_fd"]
    os.set_inheritable(status_fd, False)

    def say(**event: Any) -> None:
        os.write(status_fd, (json.dumps(event) + "\n").encode())

    environment = _initial_environment()
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != settings["parent"]:
        os._exit(SETUP_FAILED)
    if not settings["isolate"]:
        _begin(settings, environment, say)
    try:
        if settings["image"] and settings["userns"]:  # its launches' must lie within its own
            space = os.open(settings["image"][1], os.O_RDONLY)
            _check(_libc.setns(space, CLONE_NEWUSER), "setns")
        _unshare(settings)
        init = os.fork() if settings["pidns"] else 0
        if init:
            say(event="init", pid=init)
            _wait(init)
            os._exit(0)
        # Set again: a fork clears it. The parent's end is this namespace's end.
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        root = Root(settings, say)
        root.build(settings["steps"])
        memory = os.open(settings["memory"], os.O_PATH | os.O_CLOEXEC)
        root.enter()
        replace_contents(settings.get("contents") or {}, settings.get("links") or [])
        if settings["image"]:
            _forked(settings, environment, memory, say)
    except OSError as error:
        say(event="failed", errno=error.errno, reason=error.strerror or str(error))
        os._exit(SETUP_FAILED)
    if settings["pidns"]:
        _as_init(settings, environment, memory, say)
    say(event="started", program=os.getpid())
    _execute(settings, environment, say)


if __name__ == "__main__":
    main()
