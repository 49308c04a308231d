"""Launches of real processes: how they end, and that nothing of them is left."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from launching import launch_script

from torchdoctor.launch.launch import Program, launch, no_interrupts
from torchdoctor.launch.launch_spec import UNTOUCHED
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.machine import processes
from torchdoctor.machine.sensors import Sensors
from torchdoctor.schema import Workload
from torchdoctor.schema.errors import UsageError

REPOSITORY = Path(__file__).resolve().parents[2]
MARK = (
    f"torchdoctor-launch-test-{os.getpid()}"  # in the command line of every process of these tests
)


@pytest.fixture(params=["auto", "landlock", "none", "overlay without a PID namespace"])
def sandbox(request):
    kind = request.param.split()[0]
    try:
        chosen = Sandbox.choose(kind)
    except UsageError as error:
        pytest.skip(str(error))
    with chosen:
        if kind == "overlay":
            chosen.pidns = False  # as where /proc cannot be mounted: in some containers
        yield chosen


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def left_over(mark: str = MARK) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if mark in " ".join(process.cmdline()) and process.pid != os.getpid():
                found.append(f"{process.pid} {process.cmdline()}")
        except psutil.Error:
            continue
    return found


def stop_after(text):
    """Ends the launch once the program has printed that."""

    def poll(running):
        return text in (running.folder / "output.txt").read_text()

    return poll


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("raise ValueError('told')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGABRT)", -signal.SIGABRT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("print('fine')", 0),
    ],
)
def test_the_exit_code_is_the_programs_own(sandbox, project, source, code):
    result = launch_script(project, source, sandbox)
    assert (result.ended, result.exit_code) == ("exited", code)


def test_the_traceback_is_the_programs_own(sandbox, project):
    result = launch_script(project, "def f():\n    raise ValueError('told')\nf()\n", sandbox)
    files = [line for line in result.output_tail.splitlines() if "File " in line]
    assert len(files) == 2
    assert all("train.py" in line for line in files)
    assert result.output_tail.endswith("ValueError: told\n")


def test_output_of_both_kinds_is_kept_in_order(sandbox, project):
    source = (
        "import sys\nfor i in range(3):\n"
        "    print('out', i, flush=True); print('err', i, file=sys.stderr, flush=True)\n"
    )
    output = launch_script(project, source, sandbox).output_tail
    assert output.split() == [
        "out",
        "0",
        "err",
        "0",
        "out",
        "1",
        "err",
        "1",
        "out",
        "2",
        "err",
        "2",
    ]


def test_standard_input_is_replayed_and_empty_where_there_is_none(sandbox, project, tmp_path):
    (tmp_path / "stdin").write_text("one\ntwo\n")
    source = "import sys; print([line.strip() for line in sys.stdin])"
    for _ in range(2):
        result = launch_script(project, source, sandbox, stdin_file=tmp_path / "stdin")
        assert result.output_tail == "['one', 'two']\n"
    assert launch_script(project, source, sandbox).output_tail == "[]\n"


def test_a_window_that_is_done_ends_the_launch(sandbox, project):
    source = (
        "import json, os, time\n"
        "channel = json.load(open(os.environ['TORCHDOCTOR_PLAN']))['channel']\n"
        "def write(name, content):\n"
        "    open(f'{channel}/.{name}', 'w').write(json.dumps(content))\n"
        "    os.rename(f'{channel}/.{name}', f'{channel}/{name}')\n"
        "write('process-8.json', {'pid': 8})\n"
        "write('process-7.json', {'pid': 7, 'first_step_s': 0.5})\n"
        "write('done-7.json', {'reason': 'window'})\n"
        "time.sleep(600)\n"
    )
    result = launch_script(project, source, sandbox)
    assert result.ended == "stopped"
    assert result.exit_code is None


@pytest.mark.slow
def test_a_training_process_that_is_not_done_is_waited_for_only_some_seconds(project):
    source = (
        "import json, os, time\n"
        "channel = json.load(open(os.environ['TORCHDOCTOR_PLAN']))['channel']\n"
        "open(f'{channel}/process-7.json', 'w').write('{\"first_step_s\": 1}')\n"
        "open(f'{channel}/process-8.json', 'w').write('{\"first_step_s\": 1}')\n"
        "open(f'{channel}/done-7.json', 'w').write('{}')\n"
        "time.sleep(600)\n"
    )
    with Sandbox.choose("none") as sandbox:
        result = launch_script(project, source, sandbox)
    assert result.ended == "stopped"
    assert result.wall_s >= 3.0


STUBBORN = f"""
import os, signal, sys, time  # {MARK}
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", flush=True)
while True:
    try:
        time.sleep(1)
    except BaseException:
        pass
"""
DAEMON = f"""
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp(sys.executable, [sys.executable, "-c", "import signal, time; "
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)", "{MARK}"])
    os._exit(0)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "{MARK}"],
                 start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("source", [STUBBORN, DAEMON], ids=["ignores-signals", "daemon"])
def test_stopping_leaves_no_process(sandbox, project, source):
    result = launch_script(project, source, sandbox, MARK, poll=stop_after("ready"))
    assert result.ended == "stopped"
    assert left_over() == []
    assert result.doubts == []


def test_a_program_that_hangs_is_ended_in_time(sandbox, project):
    result = launch_script(project, STUBBORN, sandbox, MARK, timeout_s=1.0)
    assert result.ended == "timed-out"
    assert result.exit_code is None
    assert left_over() == []


def test_a_daemon_does_not_outlive_a_program_that_ends_by_itself(sandbox, project):
    source = DAEMON.removesuffix("time.sleep(600)\n")
    assert source.endswith('print("ready", flush=True)\n')
    result = launch_script(project, source, sandbox, MARK)
    assert (result.ended, result.exit_code) == ("exited", 0)
    assert left_over() == []


def test_shared_memory_of_a_killed_program_is_removed(sandbox, project):
    source = (
        "import os, time\n"
        "name = f'/dev/shm/torch_{os.getpid()}_1234_0'\n"
        "open(name, 'w').write('x'); print(name, 'ready', flush=True); time.sleep(600)\n"
    )
    result = launch_script(project, source, sandbox, poll=stop_after("ready"))
    # That one alone: other tests run beside this one, and make and remove theirs.
    name = Path(result.output_tail.split()[0])
    assert name.parent == Path("/dev/shm")
    assert not name.exists()


NAMELESS = (
    "import mmap, time\n"
    "file = open('/dev/shm/psm_NAME', 'w+b'); file.truncate(4096)\n"
    "kept = mmap.mmap(file.fileno(), 4096); file.close(); print('ready', flush=True)\n"
    "time.sleep(600)\n"
)


def test_shared_memory_without_a_pid_is_removed_with_its_program(sandbox, project):
    name = f"td_{os.getpid()}"
    launch_script(project, NAMELESS.replace("NAME", name), sandbox, poll=stop_after("ready"))
    assert not Path(f"/dev/shm/psm_{name}").exists()


def test_semaphores_of_a_neighbour_stay(sandbox, project):
    """Of its data loader, say, whose spawned workers are yet to open them."""
    made = []

    def poll(running):
        if not made:
            made.append(multiprocessing.get_context("spawn").Lock())
        return True

    launch_script(project, "import time; time.sleep(600)\n", sandbox, poll=poll)
    name = made[0]._semlock.name.removeprefix("/")
    assert Path(f"/dev/shm/sem.{name}").exists()


def test_ctrl_c_ends_everything_and_is_told(sandbox, project):
    def poll(running):
        if "ready" in (running.folder / "output.txt").read_text():
            signal.raise_signal(signal.SIGINT)
        return False

    result = launch_script(project, STUBBORN, sandbox, MARK, poll=poll)
    assert result.ended == "interrupted"
    assert left_over() == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_a_process_is_started_leaves_none(sandbox, project, monkeypatch):
    """A program ran on by itself: the interrupt came within Popen, so that nobody knew of it."""
    real = subprocess.Popen.__init__

    def interrupted(popen, *arguments, **named):
        real(popen, *arguments, **named)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess.Popen, "__init__", interrupted)
    result = launch_script(project, STUBBORN, sandbox, MARK)
    assert result.ended == "interrupted" and left_over() == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_failing_poll_leaves_no_process(sandbox, project):
    def poll(running):
        if "ready" in (running.folder / "output.txt").read_text():
            raise RuntimeError("defect")
        return False

    with pytest.raises(RuntimeError, match="defect"):
        launch_script(project, STUBBORN, sandbox, MARK, poll=poll)
    assert left_over() == []


def test_interrupting_the_tool_from_outside(project, tmp_path):
    driver = (
        "import sys\nfrom pathlib import Path\n"
        "from torchdoctor.launch.launch import Program, launch\n"
        "from torchdoctor.launch.launch_spec import UNTOUCHED\n"
        "from torchdoctor.launch.sandbox import Sandbox\n"
        "from torchdoctor.schema import Workload\n"
        f"w = Workload(command=[sys.executable, 'train.py', '{MARK}'], cwd={str(project)!r})\n"
        "with Sandbox.choose() as s:\n"
        "    program = Program(workload=w, sandbox=s)\n"
        f"    r = launch(program, UNTOUCHED, Path({str(tmp_path / 'launch')!r}))\n"
        "print(r.ended, s.store.folder.exists())\n"
    )
    (project / "train.py").write_text(STUBBORN)
    with subprocess.Popen(
        [sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as tool:
        output = tmp_path / "launch" / "output.txt"
        for _ in range(600):
            if output.exists() and "ready" in output.read_text():
                break
            time.sleep(0.05)
        # Twice: an impatient second Ctrl-C must not leave half of the work undone.
        tool.send_signal(signal.SIGINT)
        time.sleep(0.05)
        tool.send_signal(signal.SIGINT)
        said, _ = tool.communicate(timeout=600)
    assert left_over() == []
    assert said in ("interrupted False\n", "")


def test_the_tools_own_environment_and_children_are_left_alone(sandbox, project):
    own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        before = dict(os.environ)
        launch_script(project, "print(1)", sandbox)
        assert dict(os.environ) == before
        assert own.poll() is None
    finally:
        own.kill()
        own.wait()


def test_trackers_are_offline_and_the_probe_comes_first(sandbox, project, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", "/users/own")
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/space")
    source = (
        "import os\n"
        "for n in ('WANDB_MODE', 'NEPTUNE_MODE', 'CLEARML_OFFLINE_MODE', 'SWANLAB_MODE'):\n"
        "    print(os.environ[n])\n"
        "print(os.environ['MLFLOW_TRACKING_URI'].startswith('file:///'))\n"
        "print(os.environ['MLFLOW_ALLOW_FILE_STORE'], 'TRACKIO_SPACE_ID' in os.environ)\n"
        "print(os.environ['PYTHONPATH'].split(os.pathsep))\n"
    )
    lines = launch_script(project, source, sandbox).output_tail.splitlines()
    probe = str(REPOSITORY / "torchdoctor" / "probe")
    expected = [
        "disabled",
        "offline",
        "1",
        "offline",
        "True",
        "true False",
        str([probe, "/users/own"]),
    ]
    assert lines == expected


def test_a_write_that_is_not_held_back_is_named(project):
    (project / "kept").write_text("same")
    source = "import os; open('new', 'w').write('x'); open('train.log', 'a').write('x')"
    (project / "train.log").write_text("before")
    with Sandbox.choose("none") as sandbox:
        source_with_child = f"import os; os.system('echo y > from-a-child'); {source}"
        result = launch_script(project, source_with_child, sandbox)
    for name in ("from-a-child", "new", "train.log"):
        assert str(project / name) in result.escaped_writes
    assert str(project / "kept") not in result.escaped_writes


@pytest.mark.parametrize("mode", ["overlay", "landlock"])
def test_what_one_launch_compiled_the_next_one_finds(mode, project, tmp_path):
    source = (
        "import os\n"
        "folder = os.environ['TORCHINDUCTOR_CACHE_DIR']; os.makedirs(folder, exist_ok=True)\n"
        "print(sorted(os.listdir(folder)))\n"
        "open(os.path.join(folder, 'kernel'), 'w').close()\n"
    )
    cache = tmp_path / "cache"
    cache.mkdir()
    try:
        chosen = Sandbox.choose(mode)
    except UsageError as error:
        pytest.skip(str(error))
    with chosen as sandbox:
        first = launch_script(project, source, sandbox, compile_cache=cache)
        second = launch_script(project, source, sandbox, compile_cache=cache)
        shutil.rmtree(cache)  # as another run's end may, for the limit of all programs' caches
        third = launch_script(project, source, sandbox, compile_cache=cache)
    kept = ["kernel" in x.output_tail for x in (first, second, third)]
    assert kept == [False, True, False] and (third.exit_code, (cache / "kernel").exists()) == (
        0,
        True,
    )
    assert second.escaped_writes == []


def test_a_command_that_cannot_be_started_is_a_usage_error(sandbox, tmp_path):
    workload = Workload(command=["no-such-command-anywhere"], cwd=str(tmp_path))
    with pytest.raises(UsageError, match="no-such-command-anywhere"):
        program = Program(workload=workload, sandbox=sandbox)
        launch(program, UNTOUCHED, tmp_path / "launch", timeout_s=30)


def test_pids_inside_are_found_outside_and_sensors_follow_the_program(sandbox, project):
    source = (
        "import os, time\nprint(os.getpid(), 'ready', flush=True)\nwhile True: time.sleep(0.01)\n"
    )
    seen = {}

    def poll(running):
        text = (running.folder / "output.txt").read_text()
        if "ready" in text:
            seen.setdefault("inner", int(text.split()[0]))
            seen["root"] = running.root_pid
            seen["root sees"] = processes.inner_pid(running.root_pid)
        return running.elapsed_s > 2.0

    sensors = Sensors()
    begin = time.monotonic_ns()
    result = launch_script(project, source, sandbox, poll=poll, sensors=sensors)
    assert seen["root sees"] == seen["inner"]
    assert not psutil.pid_exists(seen["root"])
    found = result.sensors.statistics(begin, time.monotonic_ns(), main_pid=seen["inner"])
    assert found.workers_cpus is not None
    assert sensors.stop() is result.sensors
    assert (project.parent / "launch" / "sensors.npz").is_file()


def test_ctrl_c_while_a_launch_is_cleaned_up_is_heeded_afterwards() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), no_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("all of it")
    assert done == ["all of it"]
