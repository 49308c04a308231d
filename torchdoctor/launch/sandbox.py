"""Everything that a launched program writes is thrown away, and it does not notice.

On Linux, where the kernel lets us: a mount namespace with an overlay over every folder, a PID
namespace so that no process survives, a private /dev/shm. Elsewhere the probe redirects what
Python and torch write, and a snapshot of the folders names what escaped.
"""

import base64
import contextlib
import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchdoctor.launch import scratch, shared_memory
from torchdoctor.launch.escaped_writes import foreign_files
from torchdoctor.launch.sandbox_plan import Planner, Step
from torchdoctor.launch.started import Command, Started, start_directly, start_entry
from torchdoctor.machine.mounts import mounts_now
from torchdoctor.words import Workload
from torchdoctor.words.errors import UsageError

ROOM_BYTES = 2 << 30  # below this a checkpoint or two may fill the disk
MODES = ("auto", "overlay", "redirect", "none")
_TRIAL_TIMEOUT_S = 20.0
# Run inside: writes beside the user's files, reads back, and says who it is.
_TRIAL = """
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
print(os.getuid(), os.getcwd(), sep="\\n")
"""


# By absolute path; text is the target of a symbolic link; None: no such file.
Contents = Mapping[str, bytes | str | None]


@dataclass(kw_only=True)
class Sandbox:
    """A way to keep writes from the user's files. Make one with `choose`; close it at the end."""

    mode: str  # "overlay" (kernel), "redirect" (by the probe, in Python and torch) or "none"
    store: scratch.Scratch
    reason: str | None = None  # why it is not "overlay", one sentence
    doubts: list[str] = field(default_factory=list)  # what is not covered, one sentence each
    userns: bool = False
    pidns: bool = False
    on_disk: bool = False

    @classmethod
    def choose(
        cls, mode: str = "auto", beside: Path | None = None, workload: Workload | None = None
    ) -> "Sandbox":
        """Return the strongest kind that works here, tried for real in the workload's folders.

        `mode`: "auto" (overlay if it works, else redirect) or the wanted one; `beside`: a folder
        whose disk may hold the scratch folder. Raises UsageError: no overlay is possible here.
        """
        if mode not in MODES:
            raise UsageError(f"'{mode}' is no kind of sandbox: choose one of {', '.join(MODES)}.")
        cwd = workload.cwd if workload else str(Path.cwd())
        parent, on_disk = scratch.choose(beside, mounts_now(), cwd)
        store = scratch.Scratch(parent)
        reason: str | None = None
        try:
            for overlay in _overlays(store, on_disk) if mode in ("auto", "overlay") else ():
                problem = trial(overlay, workload)
                if problem is None:
                    return overlay
                reason = reason or problem
            if mode in ("auto", "overlay"):
                reason = reason or "only Linux has the namespaces that it needs."
            if mode == "overlay":
                raise UsageError(f"No overlay sandbox is possible here: {reason}")
        except BaseException:
            store.close()
            raise
        return cls(mode="none" if mode == "none" else "redirect", store=store, reason=reason)

    @property
    def doubt(self) -> str | None:
        """Return all that is not covered, for the report; None where nothing is."""
        sentences = list(self.doubts)
        if self.mode == "redirect":
            sentences.insert(
                0,
                "Only writes by Python and torch are redirected, those of other programs"
                f" and libraries are not; the stronger sandbox is not possible: {self.reason}",
            )
        return " ".join(sentences) or None

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
        }
        if self.mode == "overlay":
            for name in ("root", "memory", "upper"):
                (folder / name).mkdir()
            settings |= {
                "userns": self.userns,
                "pidns": self.pidns,
                "ipcns": not _uses_mps(),
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


def _overlays(store: scratch.Scratch, on_disk: bool) -> Iterator[Sandbox]:
    """Yield overlays with the namespaces that may be possible here, the strongest first."""
    free, folder, doubts = shutil.disk_usage(store.folder).free, store.folder.parent, []
    if not on_disk:
        doubts = ["No disk here can hold a layer: what a launch writes is kept in memory."]
    elif free < ROOM_BYTES:
        doubts = [f"Only {free / 2**30:.1f} GiB are free in {folder} for what a launch writes."]
    for userns in (False, True) if sys.platform == "linux" and os.geteuid() == 0 else (True,):
        for pidns in (True, False) if sys.platform == "linux" else ():
            yield Sandbox(
                mode="overlay",
                store=store,
                doubts=list(doubts),
                userns=userns,
                pidns=pidns,
                on_disk=on_disk,
            )


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


def trial(sandbox: Sandbox, workload: Workload | None) -> str | None:
    """Start a tiny program in it that writes beside the user's files. None: all is well."""
    cwd = workload.cwd if workload else str(Path.cwd())
    folders = {cwd, "/tmp"}
    if workload and workload.script:
        folders.add(str(Path(workload.script).parent))
    folders = {folder for folder in folders if os.access(folder, os.W_OK)}
    name = f".torchdoctor-trial-{os.getpid()}-{threading.get_ident()}"
    folder = sandbox.new_scratch()
    words = [sys.executable, "-I", "-S", "-c", _TRIAL, name, *sorted(folders)]
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
        return f"{started.failure}."
    if not ended:
        return "the trial program did not end."
    if escaped:
        return f"what was written to {escaped[0]} stayed there."
    if started.code() != 0:
        return (lines or ["the trial program failed"])[-1] + "."
    if lines != [str(os.getuid()), os.path.realpath(cwd)]:
        return "the trial program saw another user or folder."
    # Folders without a layer that the user could write to outside.
    sandbox.doubts += [
        f"Not writable in the sandbox: {limit}"
        for limit in started.limits
        if os.access(limit.partition(": ")[0], os.W_OK)
    ]
    return None
