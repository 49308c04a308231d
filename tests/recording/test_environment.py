import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from torchdoctor.machine import environment as module
from torchdoctor.machine.environment import (
    as_seen_by,
    cpu_quota,
    environment,
    memory_limit_bytes,
    usable_cpus,
)
from torchdoctor.queries.hardware import compute_capability
from torchdoctor.schema import Gpu, ProcessFacts, Recording, UsedDevice, Workload


def test_this_machine_is_described_without_importing_torch():
    script = (
        "import sys, json\nfrom torchdoctor.machine.environment import environment\n"
        "e = environment(None)\n"
        "print(json.dumps([e.python, e.usable_cpus, e.cpu_cores, e.memory_bytes, e.cpu,"
        " 'torch' in sys.modules]))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    python, usable, cores, memory, cpu, imported = json.loads(answer.stdout)
    assert python == ".".join(str(n) for n in sys.version_info[:3])
    assert usable > 0
    assert cores >= 1
    assert memory > 1 << 20
    assert cpu
    assert imported is False


def test_torch_is_found_by_its_files_alone(tmp_path, monkeypatch):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "version.py").write_text("__version__ = '9.9.1+cu129'\ncuda = '12.9'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = environment(sys.executable)
    assert (found.torch, found.cuda) == ("9.9.1+cu129", "12.9")


def test_what_the_program_itself_said_comes_first():
    program = ProcessFacts(pid=1, torch="2.4.0", hip="6.2", devices=["AMD Instinct MI300X"])
    found = as_seen_by(program, environment(sys.executable))
    assert (found.torch, found.cuda, found.hip) == ("2.4.0", None, "6.2")
    assert found.built_for == "ROCm 6.2"
    assert [gpu.name for gpu in found.gpus] == ["AMD Instinct MI300X"]


WEAK = Gpu(index=0, name="NVIDIA GeForce GT 1030", compute_capability="6.1", uuid="aa")
STRONG = Gpu(index=1, name="NVIDIA GeForce RTX 4090", compute_capability="8.9", uuid="bb")


def on(*devices):
    """A program on these devices, and the machine of both GPUs as it is then seen."""
    machine = replace(environment(sys.executable), gpus=[WEAK, STRONG])
    return as_seen_by(ProcessFacts(pid=1, used_devices=[*devices]), machine)


def test_the_gpus_that_a_program_uses_come_first_whatever_the_driver_s_order():
    # CUDA puts the fastest first: number 0 of the program is number 1 of the driver.
    found = on(UsedDevice(index=0, name="NVIDIA GeForce RTX 4090", uuid="bb"))
    assert [(gpu.name, gpu.in_use) for gpu in found.gpus] == [
        (STRONG.name, True),
        (WEAK.name, False),
    ]
    recording = Recording(workload=Workload(command=[], cwd="/"), environment=found)
    assert compute_capability(recording) == (8, 9)


def test_a_slice_of_a_gpu_is_what_torch_says_of_it():
    name = "NVIDIA A100 MIG 1g.10gb"
    slice_of_it = UsedDevice(
        index=0, name=name, uuid="cc", memory_bytes=10 << 30,
        compute_capability="8.0",
    )  # fmt: skip
    found = on(slice_of_it)
    assert found.used_gpus == [
        Gpu(
            index=0, name=name, memory_bytes=10 << 30,
            compute_capability="8.0", uuid="cc", in_use=True,
        )
    ]  # fmt: skip


def test_the_gpus_of_every_rank_are_in_use():
    machine = replace(environment(sys.executable), gpus=[WEAK, STRONG])
    ranks = [
        ProcessFacts(pid=rank, used_devices=[UsedDevice(index=0, name="", uuid=uuid)])
        for rank, uuid in enumerate(("bb", "aa"))
    ]
    found = as_seen_by(ranks[0], machine, ranks)
    assert [gpu.in_use for gpu in found.gpus] == [True, True]


def test_an_interpreter_that_does_not_answer_is_survived(tmp_path):
    found = environment(str(tmp_path / "nothing"))
    assert (found.torch, found.python) == (None, "")


def test_the_processor_and_its_vector_extensions(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "model name\t: Some CPU\nflags\t\t: fpu smep avx2 avx512f amx_bf16 sse4_2\n\n"
        "model name\t: Some CPU\nflags\t\t: fpu\n"
    )
    assert module._cpu(cpuinfo) == ("Some CPU", ["amx_bf16", "avx2", "avx512f", "sse4_2"])
    cpuinfo.write_text("CPU implementer\t: 0x41\nFeatures\t: fp asimd sve2 bf16 crc32\n")
    assert module._cpu(cpuinfo)[1] == ["asimd", "bf16", "sve2"]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_tightest_quota_on_the_way_up_counts(tmp_path):
    write(tmp_path / "a" / "cpu.max", "max 100000\n")
    write(tmp_path / "a" / "b" / "cpu.max", "150000 100000\n")
    write(tmp_path / "a" / "b" / "c" / "cpu.max", "400000 100000\n")
    write(tmp_path / "a" / "memory.max", "1000\n")
    write(tmp_path / "a" / "b" / "memory.max", "max\n")
    assert cpu_quota(tmp_path, "0::/a/b/c") == 1.5
    assert cpu_quota(tmp_path, "0::/a") is None
    assert memory_limit_bytes(tmp_path, "0::/a/b/c") == 1000


@pytest.mark.parametrize(
    ("counted", "stopped_s"),
    [
        ("nr_periods 9\nthrottled_usec 1500000\n", 1.5),
        ("nr_throttled 3\nthrottled_time 2500000000\n", 2.5),
        ("usage_usec 9\n", None),
    ],
)
def test_what_a_quota_stopped_is_read_of_both_versions(counted, stopped_s, tmp_path, monkeypatch):
    write(tmp_path / "cpu.stat", counted)
    monkeypatch.setattr(module, "cgroups", lambda controller: [tmp_path / "gone", tmp_path])
    read_s = module.quota_stopped_s()
    assert math.isnan(read_s) if stopped_s is None else read_s == stopped_s


def test_version_1_of_cgroups(tmp_path):
    write(tmp_path / "cpu,cpuacct" / "x" / "cpu.cfs_quota_us", "50000\n")
    write(tmp_path / "cpu,cpuacct" / "x" / "cpu.cfs_period_us", "100000\n")
    write(tmp_path / "cpu,cpuacct" / "cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "memory" / "memory.limit_in_bytes", "9223372036854771712\n")
    membership = "4:cpu,cpuacct:/x\n5:memory:/docker/not-here\n"
    assert cpu_quota(tmp_path, membership) == 0.5
    assert memory_limit_bytes(tmp_path, membership) is None


def test_inside_a_container_the_mount_is_the_cgroup(tmp_path):
    write(tmp_path / "cpu.max", "200000 100000\n")
    assert cpu_quota(tmp_path, "0::/docker/abc") == 2.0


def test_the_smaller_of_affinity_and_quota_is_usable(monkeypatch):
    from torchdoctor.machine import environment as cpus

    monkeypatch.setattr(cpus, "affinity", lambda: [0, 1, 5, 7])
    monkeypatch.setattr(cpus, "cpu_quota", lambda: 2.5)
    assert usable_cpus() == 2.5
    monkeypatch.setattr(cpus, "cpu_quota", lambda: None)
    assert usable_cpus() == 4
    monkeypatch.setattr(cpus, "cpu_quota", lambda: 64.0)
    assert usable_cpus() == pytest.approx(4)


def test_files_of_the_working_folder_are_not_executed(tmp_path):
    for name in ("json", "torch", "numpy", "psutil", "typing"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('executed')")
    paths = os.pathsep.join(path for path in sys.path if path)
    ended = subprocess.run(
        [sys.executable, "-m", "torchdoctor", "env"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "executed" not in ended.stdout + ended.stderr
