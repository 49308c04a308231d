"""Everything that a launched program writes is thrown away, and it does not notice.

On Linux, where the kernel lets us: a mount namespace with an overlay over every folder, a PID
namespace so that no process survives, a private /dev/shm. Where namespaces are forbidden: the probe
redirects what Python and torch write, and Landlock denies all other writing. Else nothing starts.
"""

import base64
import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from torchdoctor.launch import scratch, shared_memory
from torchdoctor.launch.escaped_writes import foreign_files
from torchdoctor.launch.layer_limits import Room
from torchdoctor.launch.layer_plan import Planner, Step
from torchdoctor.launch.layer_words import in_words
from torchdoctor.machine.mounts import ANSWERS_WITHIN_S, mounts_now, unanswered
from torchdoctor.schema import Evidence, Workload, fact, message, within
from torchdoctor.schema.errors import UsageError

ENTRY = Path(__file__).with_name("sandbox_entry.py")
ROOM_BYTES = 2 << 30  # below this a checkpoint or two may fill the disk
MODES = ("auto", "overlay", "landlock", "none")
TEMPORARY = "tmp"  # in a launch's folder, where nobody may write to /tmp
_TRUNCATE_SINCE = 3  # version of Landlock
_TRIAL_TIMEOUT_S = 20.0
# Run inside: writes beside the user's files, reads back, and says who it is.
_OVERLAY_TRIAL = """
import os, sys
for folder in sys.argv[2:]:
    path = os.path.join(folder, sys.argv[1])
    try:
        with open(path, "w") as file:
            file.write("trial")
    except OSError as error:
        sys.exit(f"{folder} cannot be written in the sandbox: {error.strerror}")
    if open(path).read() != "trial":
        sys.exit(f"{folder} does not read back what was written")
print(os.getuid(), ascii(os.getcwd()), sep="\\n")
"""
# Run inside: what stays of its writing beside the user's files, others see.
_LANDLOCK_TRIAL = """
import contextlib, os, sys
for folder in sys.argv[2:]:
    with contextlib.suppress(OSError):
        open(os.path.join(folder, sys.argv[1]), "w").close()
try:
    open(os.path.join(os.environ["TMPDIR"], "trial"), "w").close()
    open(os.devnull, "w").close()
except OSError as error:
    sys.exit(f"its own folder cannot be written: {error.strerror}")
print(os.getuid(), ascii(os.getcwd()), sep="\\n")
"""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command and its surroundings: folder, environment, input and output."""

    words: list[str]
    cwd: str
    environment: Mapping[str, str]
    output: IO[bytes] | int
    stdin: IO[bytes] | int = subprocess.DEVNULL
    inherited: tuple[int, ...] = ()  # file descriptors besides these

    def surroundings(self) -> dict[str, Any]:
        """Return the arguments of `subprocess.Popen` for them."""
        return {
            "cwd": self.cwd,
            "env": dict(self.environment),
            "stdin": self.stdin,
            "stdout": self.output,
            "stderr": subprocess.STDOUT,
            "start_new_session": True,
        }


@dataclass(frozen=True)
class Limit:
    """A folder that has no layer, and why."""

    path: str
    reason: str


@dataclass(kw_only=True)
class Started:
    """A command that was started: its process and what its entry program says."""

    popen: subprocess.Popen[bytes]
    status_fd: int | None
    folder: Path
    init_pid: int | None = None  # PID 1 of its namespace, seen from outside: ends everything
    program_pid: int | None = None  # as the program sees it
    exit_code: int | None = None  # negative for a signal
    failure: str | None = None
    exec_errno: int | None = None
    limits: list[Limit] = field(default_factory=list)
    landlock: int | None = None  # its version, where it keeps the program from writing
    memory: Room | None = None  # of the layers in memory, at its end
    _unread: bytes = b""

    def read_status(self) -> None:
        """Take in what the entry program has said since the last call; never waits."""
        while self.status_fd is not None:
            try:
                data = os.read(self.status_fd, 65536)
            except BlockingIOError:
                return
            if not data:
                self.close()
                return
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "init":
            self.init_pid = event["pid"]
        elif kind == "started":
            self.program_pid = event["program"]
        elif kind == "exit":
            self.exit_code = os.waitstatus_to_exitcode(event["status"])
        elif kind == "limited":
            self.limits.append(Limit(path=event["path"], reason=event["reason"]))
        elif kind == "landlock":
            self.landlock = event["version"]
        elif kind == "memory":
            self.memory = Room(folder="", size_bytes=event["size"], free_bytes=event["free"])
        else:
            self.failure = event["reason"]
            self.exec_errno = event["errno"] if kind == "exec-failed" else None

    def wait_s(self, seconds: float) -> bool:
        """Return whether it ended within that time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(seconds)
        self.read_status()
        return self.popen.returncode is not None

    def code(self) -> int | None:
        """Return the program's exit code, negative for a signal, once it has ended."""
        # Without a PID namespace the entry became the program, whose exit code nobody else tells.
        return self.popen.returncode if self.exit_code is None else self.exit_code

    def close(self) -> None:
        """Stop listening."""
        if self.status_fd is not None:
            os.close(self.status_fd)
            self.status_fd = None


def start_directly(command: Command, folder: Path) -> Started:
    """Start a command where there is no entry program: not on Linux."""
    popen = subprocess.Popen(command.words, **command.surroundings())
    return Started(popen=popen, status_fd=None, folder=folder, program_pid=popen.pid)


def start_entry(settings: dict[str, Any], command: Command, folder: Path) -> Started:
    """Start sandbox_entry.py with these settings; it becomes, or starts, the user's command."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(reader, False)
        path = folder / "settings.json"
        path.write_text(json.dumps(settings | {"status_fd": writer}), encoding="utf-8")
        popen = subprocess.Popen(
            [sys.executable, "-I", "-S", str(ENTRY), str(path)],
            pass_fds=(writer, *command.inherited),
            **command.surroundings(),
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return Started(popen=popen, status_fd=reader, folder=folder)


# By absolute path; text is the target of a symbolic link; None: no such file.
Contents = Mapping[str, bytes | str | None]


@dataclass(kw_only=True)
class Sandbox:
    """A way to keep writes from the user's files. Make one with `choose`; close it at the end."""

    mode: str  # "overlay", "landlock" (and the probe redirects Python and torch), or "none"
    store: scratch.Scratch
    why: Evidence | None = None  # it is not "overlay"
    uncovered: list[Evidence] = field(default_factory=list)  # what it does not keep away
    userns: bool = False
    pidns: bool = False
    on_disk: bool = False
    network: bool = True  # False: a launch reaches itself alone, by a network namespace

    @classmethod
    def choose(
        cls,
        mode: str = "auto",
        beside: Path | None = None,
        workload: Workload | None = None,
        *,
        network: bool = True,
    ) -> "Sandbox":
        """Return the strongest kind that works here, tried for real in the workload's folders.

        `mode`: "auto" (overlay if it works, else Landlock) or the wanted one; `beside`: a folder
        whose disk may hold the scratch folder; `network`: whether a launch may reach it, which only
        an overlay's namespaces can prevent. Raises UsageError: what is wanted is not possible here.
        """
        if mode not in MODES:
            raise UsageError(f"'{mode}' is no kind of sandbox: choose one of {', '.join(MODES)}.")
        if not network and mode not in ("auto", "overlay"):
            raise UsageError("--network off needs the sandbox: leave out --no-sandbox.")
        if sys.platform == "linux" and not Path("/proc/self/mountinfo").exists():
            raise UsageError(
                "There is no /proc here, which processes are watched by: mount it, also in a "
                "chroot (mount -t proc proc /proc)."
            )
        cwd = workload.cwd if workload else str(Path.cwd())
        parent, on_disk = scratch.choose(beside, mounts_now(), cwd)
        store = scratch.Scratch(parent)
        if mode == "none":
            return cls(mode=mode, store=store)
        problems: dict[str, Evidence] = {}  # of each mode, that of its strongest kind
        try:
            for layer in _layers(store, on_disk):
                cannot_cut_off = not network and layer.mode != "overlay"
                if mode not in ("auto", layer.mode) or cannot_cut_off:
                    continue
                layer.network = network
                problem = trial(layer, workload)
                if problem is None:
                    layer.why = problems.get("overlay")
                    return layer
                problems.setdefault(layer.mode, problem)
            if not network:
                problem = problems.get("overlay")
                needs = "only Linux has the namespaces that it needs."
                lacks = needs if problem is None else in_words(problem)
                raise UsageError(f"--network off is not possible here: {lacks}")
            raise UsageError(_no_layer(mode, problems))
        except BaseException:
            store.close()
            raise

    @property
    def doubts(self) -> list[Evidence]:
        """Return all that is not covered, for the report."""
        if self.mode != "landlock":
            return self.uncovered
        why = within(self.why) if self.why is not None else None
        return [fact("no-overlay", why=why), *self.uncovered]

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the scratch folder."""
        self.store.close()

    def new_scratch(self) -> Path:
        """Return an empty folder for one launch, removed by `discard`."""
        return self.store.new()

    def start(
        self,
        command: Command,
        folder: Path,
        *,
        real: Sequence[Path] = (),
        interest: Sequence[str] = (),
        contents: Contents | None = None,
        image: tuple[int, str] | None = None,
    ) -> Started:
        """Start a command in it.

        `real`: folders that it may really write to; `interest`: places where it may want to write;
        `contents`: of files, that this launch alone sees, in an overlay; `image`: socket and user
        namespace of a warm image that forks it.
        """
        if contents and self.mode != "overlay":
            raise ValueError("other contents for files need the overlay sandbox")
        if sys.platform != "linux":
            return start_directly(command, folder)
        settings: dict[str, Any] = {
            "command": command.words,
            "cwd": command.cwd,
            "parent": os.getpid(),
            "isolate": self.mode == "overlay",
            "writable": None,
        }
        if self.mode == "landlock":
            (folder / TEMPORARY).mkdir()
            temporary = {"TMPDIR": str(folder / TEMPORARY)}
            command = replace(command, environment={**command.environment, **temporary})
            settings["writable"] = _writable([folder, *real], command.output)
        if self.mode == "overlay":
            for name in ("root", "memory", "upper"):
                (folder / name).mkdir()
            settings |= {
                "userns": self.userns,
                "pidns": self.pidns,
                "ipcns": not _uses_mps(),
                "netns": not self.network,
                "own_addresses": [] if self.network else _own_addresses(),
                "root": str(folder / "root"),
                "memory": str(folder / "memory"),
                "upper": str(folder / "upper") if self.on_disk else None,
                "steps": self._steps(folder, real, (command.cwd, *interest)),
                "contents": {
                    path: base64.b64encode(data).decode() if isinstance(data, bytes) else data
                    for path, data in (contents or {}).items()
                },
                "links": [p for p, data in (contents or {}).items() if isinstance(data, str)],
                "image": image,
            }
        return start_entry(settings, command, folder)

    def _steps(self, folder: Path, real: Sequence[Path], interest: tuple[str, ...]) -> list[Step]:
        mounts = mounts_now()
        steps = Planner(
            mounts=mounts,
            scratch=str(folder.resolve()),
            userns=self.userns,
            foreign=foreign_files(interest) if self.userns else frozenset(),
        ).plan()
        if self.pidns:
            masked = [m.path for m in mounts if m.path.startswith("/proc/")]
            steps.append(["proc", "/proc", masked])
        else:
            steps.append(["view", "/proc", [], False])
        if not _uses_mps() and Path("/dev/shm").is_dir():
            steps += shared_memory.private_steps()
        steps.append(["empty", str(self.store.folder.resolve()), 4096, 0o700])
        shown = [*_meeting_points(), *(str(path.resolve()) for path in real)]
        return steps + [["view", path, [], False] for path in shown]

    def discard(self, started: Started) -> bool:
        """Remove what a launch wrote, after its end. False: something could not be removed."""
        started.close()
        return scratch.remove_tree(started.folder)


def _no_layer(mode: str, problems: Mapping[str, Evidence]) -> str:
    """Return why nothing keeps a program from the user's files, and what to do, in one sentence."""
    if mode != "auto":
        lacks = in_words(problems[mode]) if mode in problems else "only Linux has it."
        return f"No {mode} sandbox is possible here: {lacks}"
    if not problems:
        why = "only Linux has what it takes"
    else:
        needs = {"overlay": "no overlay", "landlock": "no Landlock, which Linux has since 5.13"}
        why = ", and ".join(
            f"{needs[need]}: {in_words(problems[need]).rstrip('.')}" for need in needs
        )
    return (
        f"Nothing was started, because nothing here can keep the program from your files ({why}). "
        "If it may write to them, give --no-sandbox."
    )


def _writable(folders: Sequence[Path], output: IO[bytes] | int) -> list[tuple[str, bool]]:
    """Return what a program may write without a layer, and whether it may make files there.

    Devices, terminals, its own settings in /proc, and its output, as /dev/stderr leads there.
    """
    files = ["/dev", "/proc", *([] if isinstance(output, int) else [output.name])]
    files += [str(_mps_folder())] if _uses_mps() else []
    whole = [str(shared_memory.FOLDER), *map(str, folders)]
    return [(os.path.realpath(path), path in whole) for path in (*files, *whole)]


def _layers(store: scratch.Scratch, on_disk: bool) -> Iterator[Sandbox]:
    """Yield what may keep writes from the user's files here, the strongest first."""
    yield from _overlays(store, on_disk)
    if sys.platform == "linux":
        yield Sandbox(mode="landlock", store=store, uncovered=_little_room(store))


def _little_room(store: scratch.Scratch) -> list[Evidence]:
    free = shutil.disk_usage(store.folder).free
    folder = store.folder.parent
    if free >= ROOM_BYTES:
        return []
    return [fact("little-room", free_gib=free / 2**30, folder=str(folder))]


def _overlays(store: scratch.Scratch, on_disk: bool) -> Iterator[Sandbox]:
    """Yield overlays with the namespaces that may be possible here, the strongest first."""
    uncovered = _little_room(store) if on_disk else [fact("layer-in-memory")]
    uncovered += [
        fact("mount-silent", path=path, waited_s=ANSWERS_WITHIN_S) for path in sorted(unanswered())
    ]
    for userns in (False, True) if sys.platform == "linux" and os.geteuid() == 0 else (True,):
        for pidns in (True, False) if sys.platform == "linux" else ():
            yield Sandbox(
                mode="overlay",
                store=store,
                uncovered=list(uncovered),
                userns=userns,
                pidns=pidns,
                on_disk=on_disk,
            )


def _own_addresses() -> list[str]:
    """Return the IPv4 addresses of this machine's own name, but for the loopback device's."""
    try:
        entries = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        return []
    addresses = {str(entry[4][0]) for entry in entries}
    return sorted(address for address in addresses if not address.startswith("127."))


def _mps_folder() -> Path:
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")


def _uses_mps() -> bool:
    """Return whether CUDA's multi-process service runs: clients meet it in the real /dev/shm."""
    return (_mps_folder() / "control").exists()


def _meeting_points() -> list[str]:
    """Return sockets that somebody listens on: through a layer they could not be reached."""
    sockets = {str(_mps_folder())} if _uses_mps() else set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]:
            columns = line.split(maxsplit=7)
            if len(columns) < 8 or not columns[7].startswith("/") or columns[3] != "00010000":
                continue
            with contextlib.suppress(OSError):
                path = Path(columns[7])
                if stat.S_ISSOCK(path.stat().st_mode) and os.access(path, os.W_OK):
                    sockets.add(str(path.resolve()))
    return sorted(sockets)[:64]


def trial(sandbox: Sandbox, workload: Workload | None) -> Evidence | None:
    """Start a tiny program in it that writes beside the user's files. None: all is well."""
    cwd = workload.cwd if workload else str(Path.cwd())
    folders = {cwd, "/tmp"}
    if workload and workload.script:
        folders.add(str(Path(workload.script).parent))
    folders = {folder for folder in folders if os.access(folder, os.W_OK)}
    name = f".torchdoctor-trial-{os.getpid()}-{threading.get_ident()}"
    folder = sandbox.new_scratch()
    program = _OVERLAY_TRIAL if sandbox.mode == "overlay" else _LANDLOCK_TRIAL
    words = [sys.executable, "-I", "-S", "-c", program, name, *sorted(folders)]
    with (folder / "answer").open("w+b") as output:
        command = Command(words=words, cwd=cwd, environment=os.environ, output=output)
        started = sandbox.start(command, folder)
        try:
            ended = started.wait_s(_TRIAL_TIMEOUT_S)
        finally:
            started.popen.kill()
            started.popen.wait()
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    escaped = [f for f in folders if Path(f, name).exists()]
    for place in escaped:
        Path(place, name).unlink()
    sandbox.discard(started)
    if started.failure is not None:
        return message(f"{started.failure}.")
    if not ended:
        return fact("trial-did-not-end")
    if escaped:
        return fact("trial-write-stayed", folder=escaped[0])
    if started.code() != 0:
        return message(f"{lines[-1]}.") if lines else fact("trial-program-failed")
    if lines != [str(os.getuid()), ascii(os.path.realpath(cwd))]:
        return fact("trial-saw-others")
    # Folders without a layer that the user could write to outside.
    for limit in started.limits:
        if os.access(limit.path, os.W_OK):
            sandbox.uncovered.append(fact("not-writable", path=limit.path, reason=limit.reason))
    if started.landlock is not None and started.landlock < _TRUNCATE_SINCE:
        sandbox.uncovered.append(fact("truncate-not-kept-away", version=started.landlock))
    return None
