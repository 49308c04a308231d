"""Everything that a launched program writes is thrown away, and it does not notice.

On Linux, where the kernel lets us: a mount namespace with an overlay over every folder, a PID
namespace so that no process survives, a private /dev/shm. Elsewhere the probe redirects what
Python and torch write, and a snapshot of the folders names what escaped.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchdoctor.launch import scratch, shared_memory
from torchdoctor.launch.foreign_files import ForeignFiles
from torchdoctor.launch.sandbox_plan import Planner, Step
from torchdoctor.launch.started import Command, Started, start_entry
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
    """A way to keep writes from the user's files. Make one with `choose`; close it at the end.

    mode: "overlay" (kernel), "redirect" (by the probe, in Python and torch) or "none".
    reason: why it is not "overlay", one sentence. doubts: what is not covered, one sentence each.
    """

    mode: str
    reason: str | None = None
    doubts: list[str] = field(default_factory=list)
    userns: bool = False
    pidns: bool = False
    on_disk: bool = False
    store: scratch.Scratch | None = None
    _found: dict[tuple[str, ...], ForeignFiles] = field(default_factory=dict)

    @classmethod
    def choose(
        cls, mode: str = "auto", beside: Path | None = None, workload: Workload | None = None
    ) -> Sandbox:
        """Return the strongest kind that works here, tried for real.

        Args:
            mode: "auto" (overlay if it works, else redirect), or the one wanted.
            beside: a folder whose disk may hold the scratch folder as well.
            workload: its folders are the ones that the trial writes to; None: the current one.

        Raises:
            UsageError: `mode` is "overlay" and this machine does not allow it, or is no mode.
        """
        if mode not in MODES:
            raise UsageError(f"'{mode}' is no kind of sandbox: choose one of {', '.join(MODES)}.")
        cwd = workload.cwd if workload else str(Path.cwd())
        parent, on_disk = scratch.choose(beside, mounts_now(), cwd)
        store = scratch.Scratch(parent)
        reason: str | None = None
        if mode in ("auto", "overlay"):
            try:
                sandbox, reason = _first_that_works(store, on_disk, workload)
            except BaseException:
                store.close()
                raise
            if sandbox is not None:
                return sandbox
            if mode == "overlay":
                store.close()
                raise UsageError(f"No overlay sandbox is possible here: {reason}")
        return cls(mode="none" if mode == "none" else "redirect", reason=reason, store=store)

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

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the scratch folder."""
        if self.store is not None:
            self.store.close()

    def new_scratch(self) -> Path:
        """Return an empty folder for one launch, removed by `discard`."""
        if self.store is None:
            raise RuntimeError("this sandbox has no scratch folder")
        return self.store.new()

    def start(
        self,
        command: Command,
        folder: Path,
        *,
        real: Sequence[Path] = (),
        interest: Sequence[str] = (),
        contents: Contents | None = None,
    ) -> Started:
        """Start a command in it.

        Args:
            folder: of `new_scratch`.
            real: folders that it may really write to.
            interest: files and folders that the command names, where it may want to write.
            contents: of files by path, None: no such file, that this launch alone sees instead of
                the real ones; needs layers.
        """
        if contents and self.mode != "overlay":
            raise ValueError("other contents for files need the overlay sandbox")
        if sys.platform != "linux":
            popen = subprocess.Popen(command.words, **command.surroundings())
            return Started(popen=popen, status_fd=None, folder=folder, program_pid=popen.pid)
        settings: dict[str, Any] = {
            "command": command.words,
            "cwd": command.cwd,
            "parent": os.getpid(),
            "isolate": self.mode == "overlay",
        }
        if self.mode == "overlay":
            settings |= self._layers(folder, real, [command.cwd, *interest])
            settings["contents"] = {
                path: base64.b64encode(data).decode() if isinstance(data, bytes) else data
                for path, data in (contents or {}).items()
            }
            settings["links"] = [p for p, data in (contents or {}).items() if isinstance(data, str)]
        return start_entry(settings, command, folder)

    def _layers(self, folder: Path, real: Sequence[Path], interest: list[str]) -> dict[str, Any]:
        for name in ("root", "memory", "upper"):
            (folder / name).mkdir()
        return {
            "userns": self.userns,
            "pidns": self.pidns,
            "ipcns": not _uses_mps(),
            "root": str(folder / "root"),
            "memory": str(folder / "memory"),
            "upper": str(folder / "upper") if self.on_disk else None,
            "steps": self._steps(folder, real, interest),
        }

    def _steps(self, folder: Path, real: Sequence[Path], interest: list[str]) -> list[Step]:
        mounts = mounts_now()
        planner = Planner(
            mounts=mounts,
            scratch=str(folder.resolve()),
            userns=self.userns,
            foreign=self._foreign(tuple(interest)).below if self.userns else lambda path: [],
        )
        steps = planner.plan()
        if self.pidns:
            masked = [m.path for m in mounts if m.path.startswith("/proc/")]
            steps.append(["proc", "/proc", masked])
        else:
            steps.append(["view", "/proc", [], False])
        if not _uses_mps() and Path("/dev/shm").is_dir():
            steps += shared_memory.private_steps()
        if self.store is not None:
            steps.append(["empty", str(self.store.folder.resolve()), 4096, 0o700])
        steps += [["view", path, [], False] for path in _meeting_points()]
        return steps + [["view", str(path.resolve()), [], False] for path in real]

    def _foreign(self, interest: tuple[str, ...]) -> ForeignFiles:
        # Looked for once: a launch leaves everything as it was.
        if interest not in self._found:
            self._found[interest] = ForeignFiles(interest)
        return self._found[interest]

    def discard(self, started: Started) -> bool:
        """Remove what a launch wrote, after its end. False: something could not be removed."""
        started.close()
        return scratch.remove_tree(started.folder)


def _uses_mps() -> bool:
    """Return whether CUDA's multi-process service runs: clients meet it in the real /dev/shm."""
    return (_mps_folder() / "control").exists()


def _mps_folder() -> Path:
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")


def _meeting_points() -> list[str]:
    """Return sockets that somebody listens on: through a layer they could not be reached."""
    sockets = [str(_mps_folder())] if _uses_mps() else []
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]:
            columns = line.split(maxsplit=7)
            if len(columns) < 8 or not columns[7].startswith("/") or columns[3] != "00010000":
                continue
            with contextlib.suppress(OSError):
                path = columns[7]
                if stat.S_ISSOCK(Path(path).stat().st_mode) and os.access(path, os.W_OK):
                    sockets.append(str(Path(path).resolve()))
    return sorted(set(sockets))[:64]


def _little_room(store: scratch.Scratch, on_disk: bool) -> list[str]:
    if not on_disk:
        return ["No disk here can hold a layer: what a launch writes is kept in memory."]
    free = shutil.disk_usage(store.folder).free
    if free >= ROOM_BYTES:
        return []
    return [
        f"Only {free / 2**30:.1f} GiB are free in {store.folder.parent} for what a launch writes."
    ]


def _first_that_works(
    store: scratch.Scratch, on_disk: bool, workload: Workload | None
) -> tuple[Sandbox | None, str | None]:
    if sys.platform != "linux":
        return None, "only Linux has the namespaces that it needs."
    reason: str | None = None
    for userns in (False, True) if os.geteuid() == 0 else (True,):
        for pidns in (True, False):
            tried = Sandbox(
                mode="overlay", userns=userns, pidns=pidns, on_disk=on_disk, store=store
            )
            problem = trial(tried, workload)
            if problem is None:
                doubts = [*tried.doubts, *_little_room(store, on_disk)]
                return replace(tried, doubts=doubts), None
            reason = reason or problem
    return None, reason


def trial(sandbox: Sandbox, workload: Workload | None) -> str | None:
    """Start a tiny program in it that writes beside the user's files. None: all is well."""
    cwd = workload.cwd if workload else str(Path.cwd())
    folders = {cwd, "/tmp"}
    if workload and workload.script:
        folders.add(str(Path(workload.script).parent))
    folders = {folder for folder in folders if os.access(folder, os.W_OK)}
    name = f".torchdoctor-trial-{os.getpid()}-{threading.get_ident()}"
    folder = sandbox.new_scratch()
    answer = folder / "answer"
    words = [sys.executable, "-I", "-S", "-c", _TRIAL, name, *sorted(folders)]
    with answer.open("w+b") as output:
        command = Command(words=words, cwd=cwd, environment=os.environ, output=output)
        started = sandbox.start(command, folder)
        try:
            ended = started.wait_s(_TRIAL_TIMEOUT_S)
        finally:
            started.popen.kill()
            started.popen.wait()
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    escaped = [f for f in folders if Path(f, name).exists()]
    for place in escaped:
        Path(place, name).unlink()
    problem = _trial_problem(started, ended, escaped, text, cwd)
    if problem is None:
        sandbox.doubts += [
            f"Not writable in the sandbox: {limit}" for limit in _worth_saying(started)
        ]
    sandbox.discard(started)
    return problem


def _trial_problem(
    started: Started, ended: bool, escaped: list[str], text: str, cwd: str
) -> str | None:
    if started.failure is not None:
        return f"{started.failure}."
    if not ended:
        return "the trial program did not end."
    if escaped:
        return f"what was written to {escaped[0]} stayed there."
    # Without a PID namespace the entry became the program, whose exit code nobody else tells.
    exit_code = started.popen.returncode if started.exit_code is None else started.exit_code
    if exit_code != 0:
        return (text.splitlines() or ["the trial program failed"])[-1] + "."
    if text.splitlines() != [str(os.getuid()), os.path.realpath(cwd)]:
        return "the trial program saw another user or folder."
    return None


def _worth_saying(started: Started) -> list[str]:
    """Return the folders without a layer that the user could write to outside."""
    limits = []
    for limit in started.limits:
        path = limit.partition(": ")[0]
        if os.access(path, os.W_OK):
            limits.append(limit)
    return limits
