"""Whose CPU time is that of strangers: by a /proc that is made up, and by real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from torchdoctor.machine import load_beside
from torchdoctor.machine.environment import affinity
from torchdoctor.machine.load_beside import Held, LoadBeside
from torchdoctor.machine.process_table import descendants, has_variable, rows
from torchdoctor.machine.yielding import Manner, Manners

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
OURS = os.getpid()
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@dataclass
class Machine:
    """A /proc and cgroups made of files: processes by pid, with their seconds of CPU time."""

    folder: Path
    busy_s: float = 0.0
    taken: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.proc, self.cgroups = self.folder / "proc", self.folder / "cgroup"
        self.cgroups.mkdir()
        self.autogroup(False)
        self.process(OURS)
        self.stat()

    def autogroup(self, on: bool) -> None:
        file = self.proc / "sys/kernel/sched_autogroup_enabled"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{int(on)}\n")

    def process(
        self,
        pid: int,
        cpu_s: float = 0.0,
        *,
        parent: int = 1,
        children_s: float = 0.0,
        nice: int = 0,
        policy: int = 0,
        cgroup: str = "0::/\n",
        environ: str = "",
        queued_s: float = 0.0,
    ) -> None:
        """Write a process as it is now."""
        folder = self.proc / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        ticks, of_children = round(cpu_s * TICKS_PER_S), round(children_s * TICKS_PER_S)
        words = ["S", parent, pid, pid, 0, -1, 0, 0, 0, 0, 0, ticks, 0, of_children, 0, 20]
        words += [nice, 1, 0, 77, *[0] * 18, policy, 0]
        (folder / "stat").write_text(f"{pid} (a) b) {' '.join(map(str, words))}\n")
        (folder / "cgroup").write_text(cgroup)
        (folder / "environ").write_text(environ)
        (folder / "task" / str(pid) / "schedstat").write_text(f"1 {round(queued_s * 1e9)} 1\n")

    def gone(self, pid: int) -> None:
        (self.proc / str(pid) / "stat").unlink()

    def stat(self, busy_s: float = 0.0) -> None:
        """Say how long all CPUs were busy."""
        first = affinity()[0]
        ticks = round(busy_s * TICKS_PER_S)
        (self.proc / "stat").write_text(f"cpu 9 9 9\ncpu{first} {ticks} 0 0 99999 0 0 0\n")

    def idle_group(self, path: str) -> None:
        (self.cgroups / path).mkdir(parents=True)
        (self.cgroups / path / "cpu.idle").write_text("1\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(load_beside, "SHORTEST_S", 0.0)
    return Machine(tmp_path)


class Measured:
    """A measurement on a machine; the seconds that others held and that gave way."""

    def __init__(self, machine: Machine, usable: float = 1e-9) -> None:
        folder = machine.folder / "run"
        usable = float(len(affinity())) if usable < 1e-6 else usable
        self.load = LoadBeside(usable, folder, machine.proc, machine.cgroups)
        self._context = self.load.measuring()
        self._held: Held = self._context.__enter__()

    def seconds(self) -> tuple[float, float]:
        self._context.__exit__(None, None, None)
        held = self._held
        assert held.held is not None and held.yielded is not None
        return held.held * held.seconds, held.yielded * held.seconds


def about(seconds: float) -> object:
    return pytest.approx(seconds, abs=0.03)


def test_what_descends_from_us_is_never_a_strangers(machine: Machine) -> None:
    """Of a pair each launch was a stranger to the other, and its workers were."""
    machine.process(70, 5.0, parent=OURS, children_s=1.0)
    measured = Measured(machine)
    machine.process(70, 7.0, parent=OURS, children_s=4.0)  # a launch, with a worker that ended
    machine.process(71, 2.0, parent=70)  # a worker
    machine.process(OURS, 0.5, children_s=3.0)  # a launch that began and ended
    machine.stat(busy_s=2.0 + 3.0 + 2.0 + 0.5 + 3.0)
    assert measured.seconds() == (about(0.0), about(0.0))


def test_a_launch_that_began_before_and_ended_counts_once(machine: Machine) -> None:
    machine.process(70, 5.0, parent=OURS)
    measured = Measured(machine)
    machine.gone(70)
    machine.process(OURS, children_s=6.0)
    machine.stat(busy_s=1.0 + 2.5)
    assert measured.seconds() == (about(2.5), about(0.0))


def test_what_left_our_tree_is_ours_by_its_variable(machine: Machine) -> None:
    """A detached child of a launch: its parent is the machine's first process."""
    measured = Measured(machine)
    plan = f"A=1\0TORCHDOCTOR_PLAN={machine.folder}/run/launches/1/plan.json\0"
    machine.process(80, 4.0, environ=plan)
    machine.process(81, 3.0, environ=plan.replace("/run/", "/another/"))
    machine.stat(busy_s=7.0)
    assert measured.seconds() == (about(3.0), about(0.0)), "another run is another program"


def test_what_was_seen_in_our_tree_stays_ours(machine: Machine) -> None:
    machine.process(90, 1.0, parent=OURS)
    measured = Measured(machine)
    machine.process(90, 3.0, parent=1)
    machine.stat(busy_s=2.0)
    assert measured.seconds() == (about(0.0), about(0.0))


@pytest.mark.parametrize("how", [{"policy": 5}, {"nice": 19}, {"cgroup": "0::/idle/a\n"}])
def test_what_gives_way_is_no_load(machine: Machine, how: dict) -> None:
    machine.idle_group("idle")
    machine.process(60, 1.0, **how)
    measured = Measured(machine)
    machine.process(60, 4.0, **how)
    machine.process(61, 1.0)
    machine.stat(busy_s=4.0)
    assert measured.seconds() == (about(1.0), about(3.0))


@pytest.mark.parametrize(("queued_s", "held_s"), [(0.0, 0.0), (1.0, 1.0), (9.0, 3.0)])
def test_where_autogroup_sets_sessions_apart_what_it_takes_is_measured(
    machine: Machine, queued_s: float, held_s: float
) -> None:
    """`chrt -i 0` in another session takes half of a CPU there: its group's share is as large."""
    machine.autogroup(True)
    machine.process(60, 1.0, policy=5)
    measured = Measured(machine)
    machine.process(60, 4.0, policy=5)
    machine.process(70, 0.0, parent=OURS, queued_s=queued_s)
    machine.stat(busy_s=3.0)
    assert measured.seconds() == (about(held_s), about(3.0 - held_s))


def test_what_a_quota_leaves_to_others_takes_nothing_from_us(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus = affinity()
    monkeypatch.setattr(load_beside, "affinity", lambda: [*cpus, *range(900, 900 + 8)])
    measured = Measured(machine, usable=float(len(cpus)))
    machine.stat(busy_s=0.001)
    held_s, _ = measured.seconds()
    assert held_s == 0.0


@pytest.mark.parametrize(
    ("cgroup", "own", "manner"),
    [
        ("0::/idle\n", "0::/\n", Manner.YIELDS),
        ("0::/idle/deep\n", "0::/other\n", Manner.YIELDS),
        ("0::/idle/deep\n", "0::/idle\n", Manner.COMPETES),  # of one idle group
        ("0::/busy\n", "0::/\n", Manner.COMPETES),
        ("4:cpu,cpuacct:/old\n0::/\n", "4:cpu,cpuacct:/\n0::/\n", Manner.YIELDS),
        ("4:cpu,cpuacct:/busy\n0::/idle\n", "4:cpu,cpuacct:/\n0::/\n", Manner.COMPETES),
    ],
)
def test_an_idle_cgroup_gives_way_to_all_outside_it(
    machine: Machine, cgroup: str, own: str, manner: Manner
) -> None:
    machine.idle_group("idle")
    machine.idle_group("cpu/old")
    machine.process(OURS, cgroup=own)
    machine.process(60, cgroup=cgroup)
    found = rows(machine.proc)[60]
    assert Manners(OURS, machine.proc, machine.cgroups).of(found) == manner


def test_priority_says_nothing_across_groups(machine: Machine) -> None:
    """Two containers share by the weight of their groups, whatever a process in one is."""
    machine.process(OURS, cgroup="0::/ours\n")
    machine.process(60, cgroup="0::/theirs\n", policy=5)
    machine.process(61, cgroup="0::/ours\n", policy=5)
    manners, found = Manners(OURS, machine.proc, machine.cgroups), rows(machine.proc)
    assert manners.of(found[60]) == Manner.UNSURE
    assert manners.of(found[61]) == Manner.YIELDS


def test_without_a_proc_nothing_is_known(tmp_path: Path) -> None:
    load = LoadBeside(2.0, tmp_path, tmp_path / "none")
    with load.measuring() as held:
        pass
    assert held.held is None and load.on_average() is None


BURN = "import time\nwhile time.process_time() < SECONDS: pass"


def burner(seconds: float) -> str:
    return BURN.replace("SECONDS", str(seconds))


def took_s(load: LoadBeside, held: Held) -> float:
    assert held.held is not None and held.yielded is not None
    return (held.held + held.yielded) * held.seconds


def test_real_children_and_detached_ones_are_known_as_ours(tmp_path: Path) -> None:
    """A worker of a launch hangs below us; what detaches itself has the launch's variable."""
    plan = f"TORCHDOCTOR_PLAN={tmp_path}"
    environment = {**os.environ, "TORCHDOCTOR_PLAN": str(tmp_path / "plan.json")}
    say = "print(os.getpid(), flush=True)\ninput()"
    leave = "if os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
    for code, detaches in ((say, False), (leave + say, True)):
        with subprocess.Popen(
            [sys.executable, "-c", f"import os\n{code}"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as launch:
            assert launch.stdout is not None and launch.stdin is not None
            pid = int(launch.stdout.readline())
            found = rows()
            assert (pid in descendants(found, OURS)) != detaches or found[pid].parent == OURS
            assert has_variable(pid, plan.encode())
            assert not has_variable(pid, plan.encode() + b"/another")
            launch.stdin.write("\n")


def test_a_real_stranger_counts(tmp_path: Path) -> None:
    """One that hangs below the first process, without our variable."""
    load = LoadBeside(float(len(affinity())), tmp_path)
    leave = "import os\nif os.fork(): os._exit(0)\nos.setsid()\n"
    environment = {x: y for x, y in os.environ.items() if x != "TORCHDOCTOR_PLAN"}
    command = [sys.executable, "-c", f"{leave}{burner(2.0)}\nprint('done', flush=True)"]
    # It is no descendant of this process from its first moment on.
    with load.measuring() as held:
        stranger = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        stranger.wait()
        assert stranger.stdout is not None and stranger.stdout.read() == b"done\n"
    assert took_s(load, held) >= 1.0 or held.held is None
