"""A launch that was forked from a warm image is what a fresh interpreter would be."""

from __future__ import annotations

import fcntl
import signal
import sys
import termios
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from light_torch import LIGHT

from torchdoctor.bench.record import Recorder
from torchdoctor.launch.launch import Program, RunningLaunch, WarmImage, launch, start_image
from torchdoctor.launch.launch_spec import UNTOUCHED
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.launch.workload import workload_of
from torchdoctor.machine import processes
from torchdoctor.schema.errors import UsageError

IMPORTS = '"""A script."""\nfrom __future__ import annotations\nimport os, sys\nimport torch\n'
SURROUNDINGS = (
    IMPORTS
    + """
import random, resource, signal, threading
before = os.path.exists("made")
open("made", "w").write("of this launch alone")
status = dict(x.split(":", 1) for x in open("/proc/self/status").read().splitlines())
handlers = {x.name: str(signal.getsignal(x)) for x in signal.Signals}
shown = {x: text for x, text in os.environ.items() if x != "TORCHDOCTOR_PLAN"}
for fact in (
    sys.argv, sys.orig_argv, sys.path, sys.flags, __name__, __file__, sorted(globals()),
    torch.ready,
    os.getcwd(), os.getpid() - os.getppid(), os.getsid(0) == os.getpid(),
    os.getppid() == 1, os.listdir("/proc/self/fd"), shown,
    status["CapEff"], status["SigIgn"], status["SigBlk"], os.umask(0), handlers,
    before, hash("a"),
    resource.getrlimit(resource.RLIMIT_NOFILE), os.sched_getaffinity(0), threading.active_count(),
    sum(x.isdigit() for x in os.listdir("/proc")), sys.stdin.read(), sys.stdout.encoding,
): print(fact)
numbers = os.environ["TORCHDOCTOR_PLAN"], random.random()
sys.stderr.write("an error\\n")
"""
)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    try:
        chosen = Sandbox.choose("overlay")
    except UsageError as error:
        pytest.skip(str(error))
    with chosen:
        if not chosen.pidns:
            pytest.skip("no PID namespace")
        yield chosen


@pytest.fixture
def program(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    project, packages = tmp_path / "project", tmp_path / "site-packages"
    for folder in (project, packages):
        folder.mkdir()
    (packages / "torch").mkdir()
    (packages / "torch/__init__.py").write_text("ready = True\n")
    (packages / "torch/_dynamo.py").write_text("import os\nread = os.environ.get('TORCHDYNAMO')\n")
    (tmp_path / "typed").write_text("typed")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    (project / "train.py").write_text(SURROUNDINGS)
    (project / "mine.py").write_text("import torch\n")
    workload = workload_of(["train.py", "--rate", "1"], python=sys.executable, cwd=str(project))
    return Program(workload=workload, sandbox=sandbox, stdin_file=tmp_path / "typed")


def script(program: Program, source: str) -> None:
    Path(program.workload.script or "").write_text(source)


def image_of(program: Program, folder: Path, source: str) -> WarmImage:
    """The image of a script with this text, which has one."""
    script(program, source)
    image = start_image(program, folder / "image")
    assert image is not None
    return image


def ran(program: Program, folder: Path, image: WarmImage | None) -> tuple[int | None, str]:
    folder.mkdir()
    program = replace(program, image=image)
    result = launch(program, UNTOUCHED, folder, timeout_s=60, poll=lambda running: False)
    assert result.ended == "exited"
    return result.exit_code, result.output_tail.replace(str(folder), "")


def test_its_processes_are_found_from_the_one_that_was_started(
    program: Program, tmp_path: Path
) -> None:
    """Whoever lets the loader's workers of a launch go on, or ends it, looks for them there."""
    image = image_of(
        program,
        tmp_path,
        IMPORTS + "import time; os.fork(); print('two', flush=True); time.sleep(60)",
    )
    counted = []

    def poll(running: RunningLaunch) -> bool:
        if running.started.init_pid is None or running.started.program_pid is None:
            return False
        counted.append(len(processes.tree(running.started.init_pid)))
        return counted[-1] >= 4  # PID 1, the program's parent, and two of the program

    try:
        result = launch(
            replace(program, image=image), UNTOUCHED, tmp_path / "warm", timeout_s=60, poll=poll
        )
    finally:
        image.close()
    assert (result.ended, counted[-1]) == ("stopped", 4)


def test_a_launch_that_was_ended_before_its_fork_does_not_train_by_itself(
    program: Program, tmp_path: Path
) -> None:
    """As after Ctrl-C on a busy machine, where the image comes late to what it was sent."""
    image = image_of(program, tmp_path, IMPORTS + "import time; time.sleep(60)")
    process = psutil.Process(image.started.popen.pid)

    def sent(running: RunningLaunch) -> bool:
        unread = fcntl.ioctl(image.link, termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(unread, sys.byteorder) > 0

    def trains(running: RunningLaunch) -> bool:
        return running.root_pid is not None

    process.suspend()
    program = replace(program, image=image)
    result = launch(program, UNTOUCHED, tmp_path / "ended", timeout_s=60, poll=sent)
    process.resume()
    try:
        assert result.ended == "stopped"
        following = launch(program, UNTOUCHED, tmp_path / "next", timeout_s=60, poll=trains)
        assert following.ended == "stopped"
        assert process.children(recursive=True) == []
    finally:
        left = process.children(recursive=True)
        image.close()
        for child in left:
            child.kill()


@pytest.mark.parametrize(("userns", "nohup"), [(False, False), (True, False), (False, True)])
def test_a_forked_launch_has_the_surroundings_of_a_fresh_interpreter(
    program: Program, tmp_path: Path, userns: bool, nohup: bool, request: pytest.FixtureRequest
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    program = replace(program, sandbox=replace(program.sandbox, userns=userns))
    # A folder of root's cannot be written there.
    unwritten = SURROUNDINGS.replace('open("made", "w")', "sys.stdout")
    image = image_of(program, tmp_path, unwritten if userns else SURROUNDINGS)
    try:
        fresh = ran(program, tmp_path / "fresh", None)
        assert ran(program, tmp_path / "first", image) == fresh
        assert ran(program, tmp_path / "second", image) == fresh
    finally:
        image.close()
    assert fresh[0] == 0 and "typed" in fresh[1] and "an error" in fresh[1]
    assert ran(program, tmp_path / "third", image) == fresh  # an image that has ended forks none
    assert not (tmp_path / "project/made").exists()


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("sys.exit(7)", 7),
        ("raise ValueError('told')", 1),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.fork() or sys.exit(3); os.wait()", 0),
    ],
)
def test_its_end_is_the_programs_own(
    program: Program, tmp_path: Path, source: str, code: int
) -> None:
    image = image_of(program, tmp_path, IMPORTS + source)
    fresh, forked = ran(program, tmp_path / "fresh", None), ran(program, tmp_path / "warm", image)
    image.close()
    assert forked == fresh and forked[0] == code


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\n", "line 2 stands before"),
        ("import mine, torch\n", "mine is no package that was installed"),
        ("try:\n    import torch\nexcept ImportError:\n    pass\n", "line 1 stands before"),
        ("import this, torch\n", "something was printed"),
        ("import starts_a_thread, torch\n", "threads were started"),
        ("import keeps_a_file, torch\n", "is open"),
        ("print('no torch')\n", None),
    ],
)
def test_a_program_that_launches_may_begin_in_several_ways_has_no_image(
    program: Program,
    tmp_path: Path,
    source: str,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The image decides, whatever reading the script tells.
    monkeypatch.setattr("torchdoctor.launch.launch.may_be_held_up", lambda script: True)
    packages = tmp_path / "site-packages"
    (packages / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    )
    (packages / "keeps_a_file.py").write_text("kept = open(__file__)\n")
    script(program, source)
    assert start_image(program, tmp_path / "image") is None
    told = "".join(x.read_text() for x in (tmp_path / "image").rglob("probe-error-*"))
    assert (reason or "") in told and bool(told) == bool(reason)


def test_options_of_the_interpreter_and_weaker_sandboxes_have_none(
    program: Program, tmp_path: Path
) -> None:
    plain, folder = program.workload, tmp_path / "image"
    for words in (["-u", "train.py"], ["-m", "train"], []):
        command = [*plain.command[:1], *words]
        assert (
            start_image(replace(program, workload=replace(plain, command=command)), folder) is None
        )
    for change in ({"mode": "landlock"}, {"pidns": False}):
        sandbox = replace(program.sandbox, **change)
        assert start_image(replace(program, sandbox=sandbox), folder) is None
    assert not folder.exists()


@pytest.mark.parametrize("sets", ["", "os.environ['TORCHDYNAMO'] = 'off'\n"])
def test_what_the_first_optimizer_imports_is_there_unless_the_program_sets_what_is_read_then(
    program: Program, tmp_path: Path, sets: str
) -> None:
    made = "print('torch._dynamo' in sys.modules)\nfrom torch._dynamo import read\nprint(read)\n"
    image = image_of(program, tmp_path, IMPORTS + sets + made)
    fresh, forked = ran(program, tmp_path / "fresh", None), ran(program, tmp_path / "warm", image)
    image.close()
    assert fresh == (0, "False\noff\n" if sets else "False\nNone\n")
    assert forked == (fresh if sets else (0, "True\nNone\n"))


def test_a_version_with_files_of_its_own_has_an_image_of_its_own(
    program: Program, tmp_path: Path
) -> None:
    """A gate's reference is laid over the working tree: its launches are forked from its script."""
    script(program, IMPORTS + "print('new')")
    other = (IMPORTS + "print('old')").encode()
    old = replace(UNTOUCHED, contents={program.workload.script or "": other})
    image = start_image(program, tmp_path / "image", old)
    assert image is not None
    (tmp_path / "launch").mkdir()
    result = launch(replace(program, image=image), old, tmp_path / "launch", timeout_s=60)
    image.close()
    assert (result.exit_code, result.output_tail) == (0, "old\n")
    assert Path(program.workload.script or "").read_text().endswith("print('new')")


def test_a_forked_launch_is_cut_off_from_the_network_as_any_other(
    program: Program, tmp_path: Path
) -> None:
    """It joins the namespace of its own launch: the image has another one."""
    program = replace(program, sandbox=replace(program.sandbox, network=False))
    source = IMPORTS + (
        "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname())\n"
        "print(os.readlink('/proc/self/ns/net'))\n"
    )
    image = image_of(program, tmp_path, source)
    pids = ("self", str(image.started.popen.pid))
    others = {str(Path(f"/proc/{pid}/ns/net").readlink()) for pid in pids}
    try:
        ends = [ran(program, tmp_path / name, image) for name in ("first", "second")]
    finally:
        image.close()
    assert [code for code, _ in ends] == [0, 0]
    own = {output.strip() for _, output in ends}
    assert own and others.isdisjoint(own)


@pytest.mark.slow
def test_the_observed_launch_is_forked_as_those_after_it_are(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """It imported torch by itself, and the image once more: three seconds of a minute."""
    (tmp_path / "train.py").write_text(
        f"import torch\n{LIGHT}model = torch.nn.Linear(4, 1)\n"
        "data = torch.utils.data.TensorDataset(torch.zeros(40000, 4))\n"
        "for x, in torch.utils.data.DataLoader(data, batch_size=2):\n"
        "    model(x).sum().backward()\n"
    )
    workload = workload_of(["train.py"], python=sys.executable, cwd=str(tmp_path))
    recorder = Recorder(workload, tmp_path / "out", sandbox, 0, None, 60.0, forks=True)
    observed = recorder.observe(None, 0.2, 5.0)
    recorder.close()
    assert observed.steps.steps > 10
    images = [x.name for x in (tmp_path / "out").iterdir() if x.name.startswith("image")]
    assert images == ["image-0"]
