"""The faults of `benchmarks/faults.py`: one function plants each, and says what happened."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))

from light_torch import LIGHT, STARTS_LATE  # noqa: E402

TRAINING = """\
import os, sys, time
import torch
{start}{before}
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100000):
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad({zero})
    time.sleep(0.002)
    {each}
"""
DIAGNOSE = ("--quiet", "--no-fixes", "--budget", "60s", "--output", "out")
PROFILED = ("--quiet", "--no-fixes", "--budget", "90s", "--output", "out")
TRY = ("--quiet", "--fixes", "set-to-none", "--budget", "90s", "--output", "out")
_MARK = "TORCHDOCTOR_FAULT"
_GONE_WITHIN_S = 20.0


class Skipped(Exception):  # noqa: N818 - named for what happened
    """This fault cannot be planted on this machine."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a torchdoctor process ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """All that was printed."""
        return self.out + self.err


class Case:
    """A folder with a training, its own home and temporary folders, and what is started in it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.folder = folder / "project"
        self.folder.mkdir()
        self.scratch = folder / "temporary"
        self.scratch.mkdir()
        self.write()
        (self.folder / "data.bin").write_bytes(os.urandom(4096))
        self.mounts: list[Path] = []
        self.segments = _segments()
        self.began_unix_s = time.time()
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.scratch),
            _MARK: str(folder),
        }
        self._before: dict[str, str] | None = None

    def write(
        self, before: str = "", each: str = "pass", zero: str = "", name: str = "train.py"
    ) -> None:
        """Write the training, with code before it and in each step."""
        text = TRAINING.format(start=LIGHT + STARTS_LATE, before=before, each=each, zero=zero)
        (self.folder / name).write_text(text, encoding="utf-8")

    def start(self, *arguments: str, **more: object) -> subprocess.Popen[str]:
        """Start torchdoctor in the folder."""
        if self._before is None:
            self._before = self._files()
        options = {"cwd": self.folder, "env": self.environment, "stdin": subprocess.DEVNULL, **more}
        command = [sys.executable, "-m", "torchdoctor", *arguments]
        before = options.pop("before", [])
        try:
            return subprocess.Popen(  # type: ignore[call-overload]
                [*before, *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                **options,
            )
        except PermissionError:
            raise Skipped("another user may not start this Python") from None

    def run(self, *arguments: str, seconds: float = 120.0, **more: object) -> Ended:
        """Run torchdoctor to its end, which has to come within that time."""
        process = self.start(*arguments, **more)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise AssertionError(f"it did not end within {seconds:.0f} s") from None
        ended = Ended(code=process.returncode, out=out, err=err)
        _check_no_defect(ended)
        return ended

    def until(self, pattern: str, process: subprocess.Popen[str], seconds: float = 60.0) -> bool:
        """Wait until the run folder holds such a file; False: the process ended first."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if next((self.folder / "out").glob(pattern), None) is not None:
                return True
            if process.poll() is not None:
                return False
            time.sleep(0.01)
        raise AssertionError(f"no {pattern} within {seconds:.0f} s")

    def report(self) -> dict[str, object]:
        """Return the report of the run."""
        path = self.folder / "out" / "report.json"
        assert path.is_file(), "there is no report"
        report: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
        return report

    def tmpfs(self, path: Path, size: str) -> Path:
        """Mount a small file system in memory there."""
        if os.geteuid() != 0:
            raise Skipped("mounting needs root")
        path.mkdir(exist_ok=True)
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=False
        )
        if mounted.returncode:
            raise Skipped("nothing can be mounted here")
        self.mounts.append(path)
        return path

    def _files(self) -> dict[str, str]:
        digests = {}
        for path in sorted(self.folder.rglob("*")):
            relative = path.relative_to(self.folder)
            if relative.parts[0] in ("out", "out2", "torchdoctor-runs") or not path.is_file():
                continue
            digests[str(relative)] = hashlib.sha256(path.read_bytes()).hexdigest()
        return digests

    def left_behind(self) -> list[str]:
        """Return what a fault left that it must not leave, a few words each."""
        wrong = []
        if self._before is not None and self._files() != self._before:
            wrong.append("the user's files changed")
        deadline = time.monotonic() + _GONE_WITHIN_S
        while (processes := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        if processes:
            wrong.append(f"{len(processes)} processes left: {processes[0][:80]}")
        if left := _segments() - self.segments:
            wrong.append(f"{len(left)} segments of shared memory left")
        with open("/proc/self/mounts", encoding="utf-8") as mounts:  # noqa: PTH123
            if "torchdoctor-scratch-" in mounts.read():
                wrong.append("a scratch folder is still mounted")
        return wrong

    def _processes(self) -> list[str]:
        found = []
        for process in psutil.process_iter(["environ", "cmdline"]):
            known = process.info["environ"] or {}
            ours = known.get(_MARK) == str(self.root) and process.pid != os.getpid()
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.info["cmdline"] or ["?"]))
        return found

    def scratch_folders(self) -> set[Path]:
        """Return the scratch folders since the beginning that nobody holds, wherever they are."""
        places = [self.scratch, Path("/var/tmp"), Path("/tmp"), self.folder]
        prefix = f"torchdoctor-scratch-{os.getuid()}-"
        folders = {path for place in places for path in place.glob(f"{prefix}*")}
        return {path for path in folders if _is_unlocked(path, self.began_unix_s)}

    def close(self) -> None:
        """End what is left, and take mounts away."""
        for process in psutil.process_iter(["environ"]):
            if (process.info["environ"] or {}).get(_MARK) == str(self.root):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        for path in reversed(self.mounts):
            subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


def _is_unlocked(folder: Path, since_unix_s: float) -> bool:
    """Return True if it was made since, and the run whose folder it is has ended."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_mtime < since_unix_s:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _segments() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.glob("torch_*")} if folder.is_dir() else set()


def _check_no_defect(ended: Ended) -> None:
    assert ended.code != 70, f"a defect of ours: {ended.err.strip()[-200:]}"
    own = "Traceback" in ended.err and "torchdoctor/cli" in ended.err
    assert not own, f"a traceback of ours: {ended.err.strip()[-200:]}"


def _says(ended: Ended, code: int | tuple[int, ...], *texts: str) -> None:
    codes = (code,) if isinstance(code, int) else code
    assert ended.code in codes, f"exit {ended.code}, not {code}: {ended.err.strip()[-160:]}"
    for text in texts:
        assert text in " ".join(ended.said.split()), f"nothing of '{text}' in: {ended.err[-160:]}"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault: what is promised, and how it is planted."""

    promised: str
    plant: Callable[[Case], str]
    test: str = "by hand"  # what holds it, in the suite

    @property
    def in_suite(self) -> bool:
        """Whether the suite plants it as it is here."""
        return self.test == MATRIX


MATRIX = "test_fault_matrix"
FAULTS: dict[str, Fault] = {}


def fault(
    name: str, promised: str, *, in_suite: bool = False, test: str = "by hand"
) -> Callable[[Callable[[Case], str]], Callable[[Case], str]]:
    """Register a function as the planting of a fault."""

    def register(plant: Callable[[Case], str]) -> Callable[[Case], str]:
        holding = MATRIX if in_suite else test
        FAULTS[name] = Fault(promised=promised, plant=plant, test=holding)
        return plant

    return register


def _measured(
    happens: str, *, before: str = "", each: str = "pass", options: tuple[str, ...] = DIAGNOSE
) -> Callable[[Case], str]:
    """Return what plants code in the training, which has to be measured all the same."""

    def plant(case: Case) -> str:
        case.write(before=before, each=each)
        _says(case.run("run", *options, "train.py"), 0)
        return happens

    return plant


KILLED = "no process is left, the next run works and clears the scratch folder"
# Where a run is: files of its run folder that are there from then on, and options that lead there.
MOMENTS = {
    "before its first launch": ("*", DIAGNOSE),
    "while the program imports": ("launches/*observe*/output.txt", DIAGNOSE),
    "in the first step": ("launches/*observe*/channel/events-*", DIAGNOSE),
    "while the profiler records": ("launches/*profile*/channel", PROFILED),
    "while a profile is written": ("launches/*profile*/channel/part-*", PROFILED),
    "in the first turn of a pair": ("launches/*set-to-none*/channel/turn.json", TRY),
    "between the turns of a pair": ("launches/*set-to-none*/channel/go-1", TRY),
    "while the patch is measured": ("launches/*patch*/channel", TRY),
    "as the report is written": ("report.json", DIAGNOSE),
    "with a warm image": ("image-*/output.txt", TRY),
}


def _kill_at(pattern: str, options: tuple[str, ...]) -> Callable[[Case], str]:
    def plant(case: Case) -> str:
        slow = "model.weight.grad is None or time.sleep(0.02)"
        case.write(zero="set_to_none=False", each=slow)
        process = case.start("run", *options, "train.py")
        assert case.until(pattern, process), "it ended before that moment"
        process.kill()
        process.communicate()
        wrong = case.left_behind()
        assert not wrong, wrong[0]
        again = case.run(
            "run", "--quiet", "--no-fixes", "--budget", "60s", "--output", "out2", "train.py"
        )
        _says(again, 0)
        left = case.scratch_folders()
        assert not left, f"{next(iter(left))} is left"
        return "no process left, the next run works and clears the scratch folder"

    return plant


for _name, (_pattern, _options) in MOMENTS.items():
    fault(
        f"kill -9 {_name}",
        KILLED,
        in_suite=_name == "in the first step",
    )(_kill_at(_pattern, _options))


@fault("kill -9 while a patch is applied", "each file is as before or as patched, and --undo works")
def _kill_while_patching(case: Case) -> str:
    case.write(zero="set_to_none=False", each="model.weight.grad is None or time.sleep(0.02)")
    script = case.folder / "train.py"
    before = script.read_text(encoding="utf-8")
    _says(case.run("run", *TRY, "train.py", seconds=150), 0)
    assert case.report()["recommendation"]["patch"], "there is no patch to apply"  # type: ignore[index]
    whole = {before, before.replace("set_to_none=False", "set_to_none=True")}
    for delay_s in (0.2, 0.4, 0.6, 0.8):
        process = case.start("patch", "out", "--apply")
        time.sleep(delay_s)
        process.kill()
        process.communicate()
        assert script.read_text(encoding="utf-8") in whole, "half of a patch was written"
        case.run("patch", "out", "--undo")
        assert script.read_text(encoding="utf-8") == before, "--undo did not take it back"
    return "as before or as patched after each of four kills, and taken back"


@fault("disk full: the run folder", "exit 2, and which folder to free or change")
def _run_folder_full(case: Case) -> str:
    folder = case.tmpfs(case.folder / "out2", "1m")
    (folder / "fill").write_bytes(b"x" * 1_000_000)
    ended = case.run("run", *DIAGNOSE[:-1], str(folder / "run"), "train.py")
    _says(ended, 2, "--output")
    return f"exit {ended.code}: another folder is asked for"


@fault(
    "disk full: the scratch layer",
    "the error names the scratch folder, its size, and how to move it",
    test="test_scratch",
)
def _scratch_full(case: Case) -> str:
    case.write(each='open("big", "ab").write(b"x" * (4 << 20))')
    case.tmpfs(case.root / "small", "80m")
    case.environment["TMPDIR"] = str(case.root / "small")
    # /var/tmp is preferred for its room: made as small, it holds the layers.
    raise Skipped("the suite does, where /var/tmp cannot be chosen")


@fault("disk full: the compile cache", "the run goes on without what cannot be kept")
def _cache_full(case: Case) -> str:
    cache = case.tmpfs(case.root / "cache", "1m")
    (cache / "fill").write_bytes(b"x" * 1_000_000)
    case.environment["TORCHDOCTOR_COMPILE_CACHE"] = str(cache)
    _says(case.run("run", *DIAGNOSE, "train.py"), 0)
    return "exit 0, with a report"


@fault("no memory for the program", "the report or the error says out of memory", in_suite=True)
def _program_without_memory(case: Case) -> str:
    case.write(before="import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))",
               each="step == 2 and torch.ones(1 << 32)")  # fmt: skip
    ended = case.run("run", *DIAGNOSE, "train.py")
    _says(ended, (0, 3), "memory")
    return f"exit {ended.code}, and memory is named"


@fault("no memory for torchdoctor", "one sentence or a report, and nothing is left")
def _tool_without_memory(case: Case) -> str:
    limit = 600 << 20

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    ended = case.run("run", *DIAGNOSE, "train.py", preexec_fn=limited)
    assert ended.code in (0, 2, 3, 4, 5), f"exit {ended.code}: {ended.err.strip()[-120:]}"
    return f"exit {ended.code}: {(ended.err.strip().splitlines() or ['a report'])[-1][:80]}"


@fault("no further process can be made", "one sentence, and nothing is left")
def _no_fork(case: Case) -> str:
    if shutil.which("setpriv") is None or os.geteuid() != 0:
        raise Skipped("it needs another user, whom a limit holds")
    for path in (case.root, case.folder, case.scratch):
        path.chmod(0o777)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        os.setgid(65534)
        os.setuid(65534)

    ended = case.run("run", *DIAGNOSE, "train.py", preexec_fn=limited)
    assert ended.code not in (0, 70), "it ran although no process could be made"
    return f"exit {ended.code}: {ended.err.strip().splitlines()[-1][:80]}"


@fault("the clock is set back", "times stay those of the monotonic clock", in_suite=True)
def _clock_step(case: Case) -> str:
    case.write(
        before="real = time.time; time.time = lambda: real() - 1e6 * (time.perf_counter() % 2 > 1)"
    )
    _says(case.run("run", *DIAGNOSE, "train.py"), 0)
    median_s = case.report()["baseline"]["step_time_s"]["median"]  # type: ignore[index]
    assert 0.002 < median_s < 1.0, f"a step of {median_s} s"
    return "exit 0, steps as they are"


@fault(
    "a fixed port and two launches", "what fails beside the other launch is told, and the run ends"
)
def _fixed_port(case: Case) -> str:
    case.write(
        before="import socket; s = socket.socket(); s.bind(('127.0.0.1', 48713)); s.listen()"
    )
    ended = case.run("run", *TRY, "train.py")
    _says(ended, 0)
    return "exit 0; what could not be measured is among the doubts"


fault("a file lock and two launches", "launches have files of their own, or it is told")(
    _measured(
        "exit 0",
        before="import fcntl; held = open('data.bin', 'r+'); fcntl.flock(held, fcntl.LOCK_EX)",
        options=TRY,
    )
)


fault("a daemon that outlives the program", "it ends with its launch", in_suite=True)(
    _measured(
        "exit 0, and it is gone",
        before="import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)",
    )
)


fault("a thread that never ends", "the launch ends all the same")(
    _measured(
        "exit 0",
        before="import threading; threading.Thread(target=lambda: time.sleep(600)).start()",
    )
)


@fault("an exit handler that hangs", "the launch ends all the same")
def _exit_handler(case: Case) -> str:
    case.write(
        before="import atexit; atexit.register(time.sleep, 600)", each="step == 400 and sys.exit()"
    )
    _says(case.run("run", *DIAGNOSE, "train.py", seconds=90), (0, 5))
    return "it ends within its budget"


def _signalled(number: signal.Signals, codes: tuple[int, ...]) -> Callable[[Case], str]:
    def plant(case: Case) -> str:
        process = case.start("run", *DIAGNOSE[:3], "60s", *DIAGNOSE[4:], "train.py")
        case.until("launches/*observe*/channel/events-*", process)
        time.sleep(1.5)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        ended = Ended(code=process.returncode, out=out, err=err)
        _check_no_defect(ended)
        _says(ended, codes)
        case.report()
        return f"exit {ended.code}, with a report of what was measured"

    return plant


fault("Ctrl-C", "a report of what was measured", test="test_faults")(
    _signalled(signal.SIGINT, (130, 0))
)
fault("SIGTERM, as from a scheduler", "a report of what was measured")(
    _signalled(signal.SIGTERM, (130, 143, 0))
)
fault("SIGHUP, as from a terminal", "a report of what was measured")(
    _signalled(signal.SIGHUP, (130, 129, 0))
)


@fault("Ctrl-Z, and on", "the run goes on")
def _stopped(case: Case) -> str:
    process = case.start("run", *DIAGNOSE, "train.py")
    case.until("launches/*observe*/channel/events-*", process)
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=90)
    _says(Ended(code=process.returncode, out=out, err=err), 0)
    return "exit 0"


@fault("a reader that closes the pipe", "no traceback, and the report is written", test="by hand")
def _closed_pipe(case: Case) -> str:
    process = case.start("run", *DIAGNOSE, "train.py")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=90)
    assert "Traceback" not in err, err[-160:]
    case.report()
    return f"exit {process.returncode}, with a report"


fault("a program that ignores SIGTERM", "it ends with its launch")(
    _measured(
        "exit 0, and it is gone",
        before="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    )
)


def _hidden(path: str) -> Callable[[Case], str]:
    def plant(case: Case) -> str:
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            raise Skipped("it needs root and unshare")
        words = f'mount -t tmpfs tmpfs {path} && exec "$@"'
        if path == "/dev/shm":
            words = 'umount -l /dev/shm; mount --bind /dev/null /dev/shm 2>/dev/null; exec "$@"'
        ended = case.run(
            "run", *DIAGNOSE, "train.py", before=["unshare", "-m", "sh", "-c", words, "sh"]
        )
        assert ended.code in (0, 2), f"exit {ended.code}: {ended.err.strip()[-120:]}"
        return f"exit {ended.code}" + (f": {ended.err.strip()[:90]}" if ended.code else "")

    return plant


fault("no /proc", "a report, or one sentence")(_hidden("/proc"))
fault("no /dev/shm", "a report, or one sentence")(_hidden("/dev/shm"))


@fault("another user, without a home", "a report")
def _nobody(case: Case) -> str:
    if os.geteuid() != 0:
        raise Skipped("it needs root")
    for path in (case.root, case.folder, case.scratch):
        path.chmod(0o777)
    case.environment.pop("HOME", None)

    def become() -> None:
        os.setgid(65534)
        os.setuid(65534)

    _says(case.run("run", *DIAGNOSE, "train.py", preexec_fn=become), 0)
    return "exit 0, with a report"


@fault("a folder that cannot be written", "exit 2: name another folder", in_suite=True)
def _unwritable(case: Case) -> str:
    blocked = case.root / "blocked"
    blocked.write_text("a file in the folder's place")
    ended = case.run("run", *DIAGNOSE[:-1], str(blocked / "run"), "train.py")
    _says(ended, 2, "--output")
    return "exit 2: another folder is asked for"


@fault("a read-only file system", "exit 2 for the run folder; a report with --output elsewhere")
def _read_only(case: Case) -> str:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise Skipped("it needs root and unshare")
    here = str(case.folder)
    words = f'mount --bind "{here}" "{here}" && mount -o remount,ro,bind "{here}"'
    words += f' && cd "{here}" && exec "$@"'
    before = ["unshare", "-m", "sh", "-c", words, "sh"]
    _says(case.run("run", *DIAGNOSE[:-2], "train.py", before=before), 2, "--output")
    ended = case.run("run", *DIAGNOSE[:-1], str(case.root / "elsewhere"), "train.py", before=before)
    _says(ended, 0)
    return "exit 2, and exit 0 with --output elsewhere"


@fault("odd names of folders and files", "they are taken as they are", in_suite=True)
def _odd_names(case: Case) -> str:
    case.folder = case.folder / "a b\nü '\"$x" / "-dash"
    case.folder.mkdir(parents=True)
    case.write(name="tr ä in.py")
    _says(case.run("run", *DIAGNOSE, "tr ä in.py"), 0)
    return "exit 0"


@fault("two runs in one folder at once", "each has a folder of its own", test="by hand")
def _two_runs(case: Case) -> str:
    both = [case.start("run", *DIAGNOSE[:-2], "train.py") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=120)
        _says(Ended(code=process.returncode, out=out, err=err), 0)
    reports = list((case.folder / "torchdoctor-runs").glob("*/report.json"))
    assert len(reports) == 2, f"{len(reports)} reports"
    return "exit 0 twice, two reports"


@fault("a file that is never readable (a dead mount)", "the run does not wait for it")
def _dead_mount(case: Case) -> str:
    os.mkfifo(case.folder / "pipe")
    _says(case.run("run", *DIAGNOSE, "train.py"), 0)
    return "exit 0, with a pipe in the folder in its place"


@fault("a program that removes its own folder", "the folder stays")
def _removes_itself(case: Case) -> str:
    case.write(each="step == 10 and os.system('rm -rf ../project')")
    ended = case.run("run", *DIAGNOSE, "train.py")
    assert ended.code in (0, 3, 5), f"exit {ended.code}: {ended.err.strip()[-120:]}"
    return f"exit {ended.code}, and the files stay"


fault("a program that closes its output", "a report")(
    _measured("exit 0", before="os.close(0); os.close(1); os.close(2)")
)


fault("a program that changes its folder", "a report")(_measured("exit 0", before="os.chdir('/')"))


@fault("a program that ends at once by os._exit", "one sentence on what it needs", in_suite=True)
def _ends_at_once(case: Case) -> str:
    case.write(before="os._exit(0)")
    ended = case.run("run", *DIAGNOSE, "train.py")
    _says(ended, (3, 4))
    return f"exit {ended.code}: no training step was seen"


@fault("a program that ends with a text", "its own words are shown")
def _ends_with_text(case: Case) -> str:
    case.write(before="raise SystemExit('the data are missing')")
    ended = case.run("run", *DIAGNOSE, "train.py")
    _says(ended, 3, "the data are missing")
    return "exit 3, with its words"


@fault("a program that prints a gigabyte", "ten megabytes of it are kept")
def _prints(case: Case) -> str:
    case.write(each="sys.stdout.write('x' * 10_000_000)")
    _says(case.run("run", *DIAGNOSE, "train.py"), 0)
    sizes = [x.stat().st_size for x in (case.folder / "out").rglob("output.txt")]
    assert max(sizes) < 25_000_000, f"{max(sizes)} bytes of output are kept"
    return f"exit 0; {max(sizes) / 1e6:.0f} MB kept at most"


fault("losses that are no numbers", "a report; no fix counts as training the same")(
    _measured("exit 0", each="model.weight.data.fill_(float('nan'))", options=TRY)
)


fault("fifty children", "they end with their launch")(
    _measured(
        "exit 0, and they are gone",
        before="import subprocess; kept = [subprocess.Popen(['sleep', '600']) for _ in range(50)]",
    )
)


@fault("links in a circle, and a deep folder", "a report")
def _odd_tree(case: Case) -> str:
    (case.folder / "loop").symlink_to("loop")
    (case.folder / "up").symlink_to("..")
    (case.folder.joinpath(*["d"] * 60)).mkdir(parents=True)
    _says(case.run("run", *DIAGNOSE, "train.py"), 0)
    return "exit 0"


@fault("twenty thousand files in the folder", "a report, with no time lost")
def _many_files(case: Case) -> str:
    for number in range(20_000):
        (case.folder / f"f{number}").touch()
    _says(case.run("run", *DIAGNOSE, "train.py"), 0)
    return "exit 0"


@fault(
    "a container without namespaces",
    "Landlock keeps the files, or nothing is started",
    test="test_landlock",
)
def _no_namespaces(case: Case) -> str:
    raise Skipped("the suite does")
