import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from torchdoctor.machine import nvml, sensor_columns
from torchdoctor.machine.sensor_columns import SensorColumns
from torchdoctor.machine.sensors import Sensors
from torchdoctor.schema import SensorStatistics, Throttling

SECOND = 1_000_000_000


def columns(**more):
    """Two cores over four seconds: one busy, the other half; the program takes one of them."""
    t = np.arange(0, 5) * SECOND
    seconds = t / 1e9
    given = {
        "t_ns": t,
        "core_busy_s": np.stack([10 + seconds, 20 + seconds / 2], axis=1),
        "iowait_s": seconds / 5,
        "process_t_ns": t,
        "tree_cpu_s": 3 + seconds,
        "own_cpu_s": seconds / 10,
        "process_cpu_s": np.stack([seconds * 0.75, seconds * 0.25], axis=1),
        "process_queued_s": np.stack([seconds * 0.1, seconds * 0.2], axis=1),
        "process_pids": np.array([3, 4]),
        "rss_bytes": 1000 + 100 * seconds,
        "pss_bytes": np.array([np.nan, 900, 950, 1000, 1100]),
        "swap_bytes": np.zeros(5),
        "threads": np.array([1.0, 5, 5, 5, 5]),
        "read_bytes": np.full(5, np.nan),
        "write_bytes": seconds * 1e6,
        "gpu_others": np.full((5, 0), np.nan),
    }
    for name in ("utilization", "memory_bytes", "power_w", "sm_clock_mhz", "throttle"):
        given[f"gpu_{name}"] = np.zeros((5, 0))
    return SensorColumns(**(given | more))


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch):
    monkeypatch.setattr(sensor_columns, "affinity", lambda: [0, 1])
    monkeypatch.setattr(sensor_columns, "cpu_quota", lambda: None)


def test_rates_are_those_of_the_window():
    found = columns().statistics(SECOND // 2, 3 * SECOND)
    assert found.window_s == 2.5
    assert found.samples == 3
    assert found.cpu_share == pytest.approx(0.75)
    assert found.workers_cpus == pytest.approx(0.25)
    assert found.workers_queued_cpus == pytest.approx(0.2)
    assert found.other_load_cpus == pytest.approx(0.4)
    assert found.iowait_share == pytest.approx(0.1)
    assert found.rss_peak_bytes == 1300
    assert found.rss_growth_bytes_per_s == pytest.approx(100)
    assert found.threads == 5


def test_what_a_quota_stopped_is_told_where_it_is_counted():
    stopped = columns(quota_stopped_s=np.arange(5) * 0.6).statistics(SECOND, 3 * SECOND)
    assert stopped.quota_stopped_s == pytest.approx(0.6)
    assert columns().statistics(SECOND, 3 * SECOND).quota_stopped_s is None
    uncounted = columns(quota_stopped_s=np.full(5, np.nan))
    assert uncounted.statistics(SECOND, 3 * SECOND).quota_stopped_s is None


@pytest.mark.parametrize(
    ("resident", "grows"),
    [
        ([100, 110, 121, 129, 141, 150, 161, 170], True),
        ([100, 150, 111, 160, 121, 171, 131, 180], True),  # a sawtooth over a floor that rises
        ([11, 964, 1940, 2710, 5978, 8905, 1239, 1240], False),  # one evaluation of longer ones
        ([11, 300, 600, 980, 1000, 1001, 1000, 1002], False),  # an allocator that warms up
        ([500, 400, 300, 200, 100, 90, 80, 70], False),
        ([500, 500, 900, 500, 500, 500, 500, 500], False),  # one that was given back
        ([0, 800, 910, 930, 950, 970, 990, 1010], True),  # a leak beside a cache that fills first
    ],
)
def test_memory_grows_only_where_it_rises_throughout(resident, grows):
    t = np.arange(len(resident)) * SECOND
    nothing = np.zeros(len(t))
    names = ("tree_cpu_s", "own_cpu_s", "pss_bytes", "swap_bytes", "threads")
    names += ("read_bytes", "write_bytes")
    two = {"process_cpu_s": np.zeros((len(t), 2)), "process_queued_s": np.zeros((len(t), 2))}
    one = columns(
        process_t_ns=t,
        rss_bytes=np.array(resident) * 1e6,
        **two,
        **dict.fromkeys(names, nothing),
        gpu_others=np.zeros((len(t), 0)),
    )
    assert (one.statistics(0, int(t[-1])).rss_growth_bytes_per_s > 1e6) == grows


def test_the_training_process_can_be_another_than_the_first():
    assert columns().statistics(0, 4 * SECOND, main_pid=4).workers_cpus == pytest.approx(0.75)


def test_what_was_not_measured_is_none_and_not_zero():
    found = columns().statistics(0, 4 * SECOND)
    assert found.read_bytes_per_s is None
    assert found.gpu_utilization is None
    assert found.gpu_other_processes is None
    assert found.gpu_throttle == []
    assert found.swap_used_bytes == 0


def test_memory_at_its_highest_counts_shared_pages_once_where_that_is_known():
    assert columns().peak_memory_bytes() == 1100
    assert columns(pss_bytes=np.full(5, np.nan)).peak_memory_bytes() == 1400


def test_a_quota_below_the_number_of_cpus_is_what_counts(monkeypatch):
    monkeypatch.setattr(sensor_columns, "cpu_quota", lambda: 1.25)
    assert columns().statistics(0, 4 * SECOND).cpu_share == pytest.approx(1.1 / 1.25)


def test_the_gpus_of_the_program_count():
    found = columns(
        gpu_utilization=np.array([[0.5, 0.0]] * 4 + [[0.9, 0.0]]),
        gpu_memory_bytes=np.array([[10.0, 99]] * 5),
        gpu_power_w=np.full((5, 2), np.nan),
        gpu_sm_clock_mhz=np.array([[1000.0, 1]] * 5),
        gpu_throttle=np.array([[0x4 | 0x1, 0x40]] * 2 + [[0x1, 0]] * 3),
        gpu_ours=np.array([1.0, 0.0]),
        gpu_others=np.array([[0.0, 1]] * 3 + [[2, 1]] * 2),
    ).statistics(0, 4 * SECOND)
    assert found.gpu_utilization == pytest.approx(0.58)
    assert found.gpu_memory_peak_bytes == 10
    assert found.gpu_power_w is None
    assert found.gpu_throttle == [Throttling(reason="power cap", share=0.4)]
    assert (found.gpu_other_processes, found.gpu_sharing_processes) == (3, 2)


def gpus_of(uuids, **changes):
    """Columns of two devices, of which the first is busy, and the driver names no process."""
    return columns(
        gpu_utilization=np.array([[0.9, 0.1]] * 5),
        gpu_memory_bytes=np.array([[99.0, 7]] * 5),
        gpu_power_w=np.array([[300.0, 50]] * 5),
        gpu_sm_clock_mhz=np.array([[1000.0, 500]] * 5),
        gpu_throttle=np.array([[0x4, 0]] * 5),
        gpu_ours=np.zeros(2),
        gpu_others=np.zeros((5, 2)),
        gpu_uuid=np.array(["aa", "bb"]),
    ).of_devices(uuids).statistics(0, 4 * SECOND)  # fmt: skip


def test_the_program_s_gpu_is_the_one_that_its_torch_names():
    found = gpus_of({"bb"})
    assert (found.gpu_utilization, found.gpu_memory_peak_bytes) == (pytest.approx(0.1), 7)


def test_of_a_slice_of_a_gpu_the_driver_s_figures_say_nothing():
    found = gpus_of({"cc"})
    assert found.gpu_utilization is None and found.gpu_memory_peak_bytes is None
    assert found.gpu_throttle == []


def test_a_torch_that_names_no_gpu_leaves_all_of_them():
    assert gpus_of({None}).gpu_memory_peak_bytes == gpus_of(set()).gpu_memory_peak_bytes == 99


def test_columns_are_stored_and_read_again(tmp_path):
    columns().save(tmp_path / "sensors.npz")
    again = SensorColumns.load(tmp_path / "sensors.npz")
    assert again.statistics(0, 4 * SECOND) == columns().statistics(0, 4 * SECOND)


def test_without_a_sample_nothing_is_claimed():
    never = Sensors().stop()
    assert never.statistics(0, SECOND) == SensorStatistics()
    assert never.peak_memory_bytes() is None
    assert columns().statistics(SECOND, SECOND) == SensorStatistics()


BUSY = """
import os, subprocess, sys, time
memory = bytearray(64 << 20)
worker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end: pass
"""


@pytest.mark.slow
def test_a_busy_program_with_a_worker():
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"ready\n"
        tree = [psutil.Process(program.pid), *psutil.Process(program.pid).children()]
        sensors = Sensors()
        begin = time.monotonic_ns()
        sensors.start(program.pid)
        time.sleep(1.2)
        found = sensors.stop()
        for process in reversed(tree):
            process.kill()
    end = int(found.t_ns[-1])
    seen = found.statistics(begin, end)
    assert sensors.stop() is found
    # Absolute bounds only where they hold on a machine with other load, too.
    assert 0 < seen.workers_cpus < 1.2
    assert 64 << 20 < seen.rss_peak_bytes < 1 << 30
    assert 64 << 20 < found.peak_memory_bytes() <= seen.rss_peak_bytes
    assert seen.threads >= 2
    assert (np.diff(found.t_ns) > 0).all()


def test_a_program_that_is_gone_is_survived():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    sensors = Sensors(interval_s=0.01)
    sensors.start(ended.pid)
    time.sleep(0.05)
    found = sensors.stop()
    assert len(found.t_ns) >= 1
    assert found.statistics(int(found.t_ns[0]), int(found.t_ns[-1]) + 1).workers_cpus is None


class FakeDriver:
    """pynvml with two devices, the second of which supports nothing."""

    class NVMLLibraryMismatchError(Exception):
        pass

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM = 1

    def __init__(self, present=True):
        self.open = 0
        self.present = present

    def nvmlInit(self):
        if not self.present:
            raise self.NVMLError
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlSystemGetDriverVersion(self):
        return "555.1"

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetName": "H100",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=7, total=80),
            "nvmlDeviceGetPowerUsage": 350_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetClockInfo": 1500,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x20,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1)],
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
        }
        if name not in answers:
            raise AttributeError(name)

        def answer(device, *_):
            if device == 1:
                raise self.NVMLError
            return answers[name]

        return answer


def test_the_driver_is_read_and_what_it_does_not_support_is_not_measured(monkeypatch):
    driver = FakeDriver()
    monkeypatch.setattr(nvml, "pynvml", driver)
    with nvml.session() as gpus:
        first, second = gpus.devices
        assert gpus.read("utilization", first) == pytest.approx(0.4)
        assert gpus.read("power_w", first) == 350
        assert np.isnan(gpus.read("utilization", second))
        assert gpus.processes(second) is None
        described = gpus.describe()
        assert described[0].compute_capability == "9.0"
        assert (described[1].name, described[1].memory_bytes) == ("unknown", None)
        assert gpus.driver() == "555.1"
    assert driver.open == 0


@pytest.mark.slow
def test_gpu_samples_reach_the_statistics(monkeypatch):
    monkeypatch.setattr(nvml, "pynvml", FakeDriver())
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as program:
        sensors = Sensors()
        sensors.start(program.pid)
        time.sleep(1.2)
        found = sensors.stop()
        program.kill()
    seen = found.statistics(int(found.t_ns[0]), int(found.t_ns[-1]))
    assert seen.gpu_utilization == pytest.approx(0.4)
    assert seen.gpu_memory_peak_bytes == 7
    assert seen.gpu_other_processes == 1
    assert seen.gpu_throttle == [Throttling(reason="thermal (driver)", share=1.0)]


def test_a_machine_without_a_driver(monkeypatch):
    monkeypatch.setattr(nvml, "pynvml", FakeDriver(present=False))
    with nvml.session() as gpus:
        assert gpus is None
