"""A program under `watch` and without it: the same output, terminal, signals and end."""

import contextlib
import dataclasses
import gzip
import json
import os
import pty
import resource
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from light_torch import BEFORE_TORCH, LIGHT

from torchdoctor.schema import Evidence
from torchdoctor.schema.watched import Alert
from torchdoctor.watch import end_report
from torchdoctor.watch.inside import layout
from torchdoctor.watch.recording import ProcessLog, WatchedRun, read_run
from torchdoctor.watch.summary import summary_of

pytestmark = pytest.mark.slow
TRAIN = f"""
import sys, time
import torch
{LIGHT}
print("terminal", sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), flush=True)
if "ask" in sys.argv:
    print("hello", input("name? "), flush=True)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.ones(400, 4), batch_size=4)
steps = 0
try:
    while True:
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
            time.sleep(0.0002)  # briefer steps share a row
            steps += 1
        torch.save(model.state_dict(), "checkpoint.pt")
        if steps == 100:
            print("trained", flush=True)
        if "long" not in sys.argv and steps == 300:
            break
        if "long" in sys.argv:
            time.sleep(0.2)
except KeyboardInterrupt:
    print("interrupted once", flush=True)
    sys.exit(7)
print("steps", steps, "loss", model.weight.sum().item(), file=sys.stderr)
sys.exit(3)
"""


WRONG = """
import torch.distributed as dist
for call in (
    lambda: torch.utils.data.DataLoader([0], num_workers=-1),
    lambda: torch.utils.data.DataLoader([0], no_such_argument=1),
    dist.barrier,
    lambda: dist.init_process_group("gloo"),
):
    try:
        call()
    except (TypeError, ValueError):
        traceback.print_exc()
torch.save(1, "nowhere/x")
"""

# What a program may do with its files, its loaders and torch's functions.
ODD = f"""
{BEFORE_TORCH}import os, pickle, sys
import torch, torch.distributed as dist
{LIGHT}from torch.utils.data import DataLoader

class Equal(DataLoader):
    __hash__ = None

class Generated(DataLoader):
    def _get_iterator(self):
        return (batch for batch in super(Generated, self)._get_iterator())

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def epoch(rank, loader):
    for x in loader:
        model(x).sum().backward()
        optimizer.step()

def train(kind):
    epoch(0, kind(torch.ones(400, 4), batch_size=4))

if __name__ == "__main__":
    train(Equal)
    train(Generated)
    train(DataLoader)
    # A loader comes to another process with whatever it had in this one.
    loaders = [DataLoader(torch.ones(400, 4), batch_size=4) for _ in range(9)]
    torch.multiprocessing.spawn(epoch, args=loaders[-1:])
    for function in (torch.save, dist.all_reduce, dist.init_process_group):
        assert pickle.loads(pickle.dumps(function)) is function
    os.closerange(3, 256)  # as a daemon does
    files = [open(f"own{{number}}.txt", "wb", buffering=0) for number in range(16)]
    for file in files:
        file.write(b"hello")
    for _ in range(3):
        train(DataLoader)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(BEFORE_TORCH + "import torch; torch.manual_seed(0)\n" + TRAIN)
    return path


def command(script: Path, run: Path, *words: str) -> list[str]:
    own = [sys.executable, "-m", "torchdoctor", "watch", "--output", str(run)]
    return [*own, "--", sys.executable, str(script), *words]


def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"waited in vain: {what}")


def ended(run: Path) -> WatchedRun:
    """Return the run once the process beside the program has written the end of it."""

    def is_over() -> bool:
        return any(start.end_unix_ns for start in read_run(run).starts)

    until(is_over, "the end of the recording")
    return read_run(run)


def training(run: Path) -> ProcessLog:
    (log,) = read_run(run).processes
    return log


def beside(run: Path) -> int:
    """Return the pid of torchdoctor's process beside the program; 0: there is none yet."""
    try:
        program = read_run(run).starts[0].pid
    except FileNotFoundError:
        return 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(run) in process.cmdline() and process.pid != program:
                return process.pid
    return 0


def test_output_files_and_exit_code_are_those_of_the_program(script: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    plain = subprocess.run([sys.executable, script], capture_output=True, cwd=tmp_path)
    checkpoint = (tmp_path / "checkpoint.pt").read_bytes()
    watched = subprocess.run(command(script, run), capture_output=True, cwd=tmp_path)
    assert (plain.returncode, plain.stdout, plain.stderr) == (
        *(watched.returncode, watched.stdout, watched.stderr),
    )
    assert plain.returncode == 3
    assert (tmp_path / "checkpoint.pt").read_bytes() == checkpoint
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "checkpoint.pt", "run"}
    over = ended(run)
    assert over.starts[0].exited is True
    (log,) = over.processes
    assert log.steps.step.tolist() == list(range(1, 301))
    assert [event.kind for event in log.events].count("checkpoint") == 3
    assert log.process.step_kind == "loader" and log.process.exited
    assert log.process.location is not None and log.process.location.file == str(script)
    assert len(over.machines) == 1


def test_odd_loaders_pickled_functions_and_closed_files_are_left_alone(tmp_path: Path) -> None:
    """A loader without a hash ended the training; rows went into files that a program opened
    after it had closed ours; and a closed stdout kept it from starting.
    """
    path, run = tmp_path / "train.py", tmp_path / "run"
    path.write_text(ODD)
    quoted = shlex.join(command(path, run))
    subprocess.run(f"{quoted} >&-", shell=True, cwd=tmp_path, check=True, timeout=300)
    log, spawned = ended(run).processes
    assert [file.stat().st_size for file in tmp_path.glob("own*.txt")] == [5] * 16
    assert log.process.probe_failed is None and log.steps.step[-1] >= 500
    assert spawned.process.probe_failed is None and spawned.steps.step[-1] >= 99


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_ends_it_as_it_would_without_us(
    script: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    program = subprocess.Popen(
        command(script, run, "long"), stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert program.stdout is not None
    until(lambda: program.stdout is not None and "trained" in program.stdout.readline(), "steps")
    until(lambda: len(training(run).steps) >= 100, "a log")
    program.send_signal(number)
    output, _ = program.communicate(timeout=60)
    over = ended(run)
    assert over.starts[0].exited is (number == signal.SIGINT)
    assert ("interrupted once" in output) is (number == signal.SIGINT)
    assert program.returncode == (7 if number == signal.SIGINT else -number)
    steps = over.processes[0].steps.step
    assert steps.tolist() == list(range(1, len(steps) + 1))


@pytest.mark.parametrize(
    ("work", "end"),
    [
        ("", "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"),
        ("model(torch.ones(4)).sum().backward()", "os.kill(os.getpid(), signal.SIGINT)"),
        ("model(torch.ones(4)).sum().backward()", WRONG),
    ],
)
def test_an_end_before_the_first_step_is_told(tmp_path: Path, work: str, end: str) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(
        f"import os, signal, time, torch, traceback\nmodel = torch.nn.Linear(4, 2)\n{work}\n{end}\n"
    )
    plain = subprocess.run([sys.executable, script], capture_output=True, cwd=tmp_path)
    watched = subprocess.run(command(script, run), capture_output=True, cwd=tmp_path)
    assert (plain.returncode, plain.stderr) == (watched.returncode, watched.stderr)
    ended(run)
    ending = [known.fact for known in summary_of(read_run(run)).ending]
    assert ending == ["program-broken-off", "no-step"]
    assert end_report.rendered(run, "terminal", details=False).count("No training step") == 1


def test_the_program_goes_on_when_we_are_killed(script: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    program = subprocess.Popen(
        command(script, run, "long"), stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    until(lambda: run.is_dir() and beside(run) > 0, "the process beside the program")
    os.kill(beside(run), signal.SIGKILL)
    until(lambda: program.stdout is not None and "trained" in program.stdout.readline(), "steps")
    until(lambda: len(training(run).steps) > 200, "a log that goes on")
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    assert program.returncode == 7
    assert training(run).process.exited


def test_a_full_disk_costs_the_log_alone(script: Path, tmp_path: Path) -> None:
    run, most = tmp_path / "run", 12_000

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    program = subprocess.run(
        command(script, run), capture_output=True, cwd=tmp_path, preexec_fn=little_room
    )
    assert program.returncode == 3
    steps = training(run).steps.step.tolist()
    assert steps == list(range(1, len(steps) + 1))
    assert 100 < len(steps) < 300


def test_a_failing_probe_removes_itself(script: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    broken = "import sys, torch\nwatch = sys.modules['_torchdoctor_probe_attach']._watch\n"
    broken += "watch.log.forward = None\n"
    script.write_text(broken + script.read_text())
    program = subprocess.run(command(script, run), capture_output=True, cwd=tmp_path)
    assert (program.returncode, b"Error" in program.stderr) == (3, False)
    process = ended(run).processes[0].process
    assert process.probe_failed is not None and "TypeError" in process.probe_failed


NESTED = f"""
import sys, torch
{LIGHT}
class Mean(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(4, 1)
    def forward(self, rows):
        return self.last(torch.cat([row for row in rows.unbind()])).mean()

net = Mean()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(120):
    if step == BREAKS_AT:
        sys.modules["_torchdoctor_probe_attach"]._watch.log.forward = None
    optimizer.zero_grad()
    net(torch.nested.nested_tensor([torch.rand(2, 4), torch.rand(3, 4)])).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("breaks_at", [None, 80])
def test_rows_of_several_lengths_cost_no_step(tmp_path: Path, breaks_at: int | None) -> None:
    """Their tensor has no shape to ask for: three of them, and the watch removed itself unsaid."""
    run = tmp_path / "run"
    script = tmp_path / "train.py"
    script.write_text(NESTED.replace("BREAKS_AT", str(breaks_at)))
    subprocess.run(command(script, run), capture_output=True, cwd=tmp_path, check=True)
    summary = summary_of(ended(run))
    told = [evidence.fact for evidence in summary.ending]
    if breaks_at is None:
        assert (summary.steps, told) == (120, ["program-ended"])
    else:
        assert told == ["program-ended", "watch-removed-itself"]
        assert 75 < summary.steps < 90


COUNTED = f"""
{BEFORE_TORCH}import sys, torch
{LIGHT}watch = sys.modules["_torchdoctor_probe_attach"]._watch
shallow, deep = (
    torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(layers)]) for layers in (2, 40)
)
optimizer = torch.optim.SGD([*shallow.parameters(), *deep.parameters()], lr=0.01)
calls = 0
def count(frame, event, _):
    global calls
    name = frame.f_code.co_filename.replace("\\\\", "/")
    calls += event == "call" and ("/torchdoctor/watch/" in name or "/torchdoctor/probe/" in name)
for step, x in enumerate(torch.utils.data.DataLoader(torch.ones(560, 4), batch_size=4)):
    model = (deep, shallow)[step % 2] if step < 80 else shallow if step < 100 else deep
    if step == 80:
        # What comes now and then costs more of the longer steps of a deep model.
        watch.log.due_ns = watch.backwards._due_ns = 1 << 62
        sys.setprofile(count)
    if step in (100, 120):
        sys.setprofile(None)
        print(calls / 20)
        calls = 0
        sys.setprofile(count if step == 100 else None)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_step_costs_few_calls_and_no_more_for_a_deep_model(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(COUNTED)
    words = command(tmp_path / "counted.py", tmp_path / "run")
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    shallow, deep = (float(line) for line in done.stdout.split())
    assert 8 <= shallow <= 24 and abs(deep - shallow) < 1


ASKED = f"""
{BEFORE_TORCH}import math, os, sys, time, torch
{LIGHT}profiling = sys.modules["_torchdoctor_probe_attach"]._watch.profiling
profiling._began_s -= 10_000  # as after hours, when no window is due
profiling._last_s = math.inf
model = torch.nn.Linear(4, 2)
while not os.path.exists("stop"):
    for x in torch.utils.data.DataLoader(torch.ones(40, 4), batch_size=4):
        model(x).sum().backward()
        time.sleep(0.005)
    if profiling._bytes:
        profiling._began_s = time.monotonic()  # the window has taken all that it may
"""


def test_a_slower_training_is_profiled_at_once_within_the_limit(tmp_path: Path) -> None:
    (tmp_path / "asked.py").write_text(ASKED)
    run, watch = tmp_path / "run", command(tmp_path / "asked.py", tmp_path / "run")
    program = subprocess.Popen([*watch[:4], "--profiler", *watch[4:]], cwd=tmp_path)

    def tell(kind: str) -> None:
        alert = Alert(t_unix_s=time.time(), step=1, kind=kind, fact=Evidence(fact=kind))
        with (run / "watch" / f"alerts-{socket.gethostname()}.jsonl").open("a") as file:
            file.write(json.dumps(dataclasses.asdict(alert)) + "\n")

    def windows() -> list[Path]:
        return [run / "watch" / e.text for e in training(run).events if e.kind == "profile"]

    def look_again() -> None:
        before = len(training(run).sensors)
        until(lambda: len(training(run).sensors) > before + 3, "signs of life")

    until(lambda: any(run.glob("watch/run-*.json")) and bool(read_run(run).processes), "a log")
    try:
        tell("memory")
        look_again()
        assert windows() == []
        tell("slower")
        until(lambda: len(windows()) == 1, "a window")
        look_again()
        tell("slower")
        look_again()
        (window,) = windows()
        assert b'"traceEvents"' in gzip.decompress(window.read_bytes())
    finally:
        (tmp_path / "stop").touch()
    assert program.wait(60) == 0
    assert (training(run).steps.rows["flags"] & layout.PROFILED > 0).sum() == 4


class Terminal:
    """A program in a terminal of its own, as a shell would start it."""

    def __init__(self, words: list[str], cwd: Path) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvp(words[0], words)
        self.text = ""

    def write(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read_until(self, text: str) -> None:
        until(lambda: self._read() or text in self.text, text)

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):  # its other end was closed
                self.text += os.read(self._master, 65536).decode()

    def code(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self._read()
        os.close(self._master)
        return os.waitstatus_to_exitcode(status)


def test_the_terminal_is_the_programs(script: Path, tmp_path: Path) -> None:
    watched = Terminal(command(script, tmp_path / "run", "ask", "long"), tmp_path)
    watched.read_until("name? ")
    watched.write("Ada\n")
    watched.read_until("trained\r\n")
    watched.write("\x03")
    watched.read_until("interrupted once")
    assert watched.code() == 7
    plain = Terminal([sys.executable, str(script), "ask", "long"], tmp_path)
    plain.read_until("name? ")
    plain.write("Ada\n")
    plain.read_until("trained\r\n")
    plain.write("\x03")
    plain.read_until("interrupted once")
    assert plain.code() == 7
    assert watched.text == plain.text
    assert "terminal True True True" in watched.text
