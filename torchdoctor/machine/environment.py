"""The machine, its limits and the software, as far as they can be seen without importing torch."""

import contextlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from torchdoctor.machine import nvml
from torchdoctor.schema import ContainerLimits, Environment, Gpu, ProcessFacts, UsedDevice

_ASK_TIMEOUT_S = 60.0
_SHM = Path("/dev/shm")
CGROUPS = Path("/sys/fs/cgroup")
_CFS = ("quota", "period")
_STOPPED_UNITS = {"throttled_usec": 1e6, "throttled_time": 1e9}  # of a second, by the version
_NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number where there is none
# Looks torch up without importing it: only its version file is executed.
_ASK = """
import json, platform
from importlib import util
found = {"python": platform.python_version(), "torch": None, "cuda": None, "hip": None}
try:
    with open(util.find_spec("torch").submodule_search_locations[0] + "/version.py") as file:
        names = {}
        exec(file.read(), names)
    found.update(torch=str(names["__version__"]), cuda=names.get("cuda"), hip=names.get("hip"))
except Exception:
    pass
print(json.dumps(found))
"""
# What is asked with `-c` imports from the working folder first: a json.py there would be executed.
# (`-P` is of Python 3.11, and `-I` leaves PYTHONPATH out.)
SAFE_PATH = "import sys; sys.path[:] = [path for path in sys.path if path]"
# Imports torch, which is slow, and knows every accelerator that this torch has code for.
_ASK_DEVICES = """
import json, torch
known = getattr(torch, "accelerator", None)
device = known.current_accelerator() if known is not None else None
module = torch.cuda if device is None else torch.get_device_module(device)
there = (device is not None or torch.version.cuda is not None) and module.device_count()
name = getattr(module, "get_device_name", lambda index: device.type)
print(json.dumps([name(index) for index in range(there or 0)]))
"""
# Of the many flags in /proc/cpuinfo those that decide which kernels torch and oneDNN take.
_FEATURES = re.compile(
    r"^(sse4_2|avx|avx2|fma|f16c|avx512\w*|avx_vnni|amx_\w+|"
    r"asimd|asimdhp|asimddp|fphp|sve\w*|bf16|i8mm|sme|sme2)$"
)


def environment(python: str | None) -> Environment:
    """Return what a program has at its disposal; its interpreter (None: ours) names its torch."""
    asked = versions(python or sys.executable)
    with nvml.session() as gpus:
        devices = gpus.describe() if gpus is not None else []
        driver = gpus.driver() if gpus is not None else None
    name, features = _cpu()
    return Environment(
        torch=asked.get("torch"),
        python=asked.get("python") or "",
        platform=platform.platform(),
        cpu=name,
        cpu_cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        usable_cpus=usable_cpus(),
        cpu_features=features,
        memory_bytes=int(psutil.virtual_memory().total),
        gpus=devices,
        driver=driver,
        cuda=asked.get("cuda"),
        hip=asked.get("hip"),
        container=ContainerLimits(
            cpu_quota=cpu_quota(),
            memory_bytes=memory_limit_bytes(),
            shm_bytes=shutil.disk_usage(_SHM).total if _SHM.is_dir() else None,
        ),
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
    )


def as_seen_by(
    program: ProcessFacts, machine: Environment, trainers: Sequence[ProcessFacts] = ()
) -> Environment:
    """Return the machine with the torch of a program, and with the GPUs that it uses first.

    `trainers`: all processes that train, of which the program is one.
    """
    used: dict[str | int, UsedDevice] = {}
    for process in (program, *trainers):
        for device in process.used_devices:
            used.setdefault(device.uuid or device.index, device)
    return replace(
        machine,
        torch=program.torch or machine.torch,
        cuda=program.cuda,
        hip=program.hip,
        gpus=_with_used(machine.gpus, list(used.values())) or named_gpus(program.devices),
    )


def _with_used(machine: list[Gpu], used: list[UsedDevice]) -> list[Gpu]:
    """Return the machine's GPUs, those in use first; what the driver does not name is torch's."""
    if not used:
        return machine
    by_uuid = {gpu.uuid: gpu for gpu in machine if gpu.uuid is not None}
    ours = [by_uuid[device.uuid] for device in used if device.uuid in by_uuid]
    if len(ours) == len(used):
        rest = [gpu for gpu in machine if gpu not in ours]
    elif all(device.uuid is None for device in used) and len({gpu.name for gpu in machine}) == 1:
        return machine  # an older torch names no device, and all are alike
    else:  # a slice of a GPU (MIG), or another maker's
        ours = [_as_torch_says(device) for device in used]
        rest = machine
    return [
        *(replace(gpu, in_use=True) for gpu in ours),
        *(replace(gpu, in_use=False) for gpu in rest),
    ]


def _as_torch_says(device: UsedDevice) -> Gpu:
    return Gpu(
        index=device.index,
        name=device.name,
        memory_bytes=device.memory_bytes,
        compute_capability=device.compute_capability,
        uuid=device.uuid,
    )


def named_gpus(names: Iterable[str]) -> list[Gpu]:
    """Return devices of which torch tells the names, and nobody else anything."""
    return [Gpu(index=index, name=name) for index, name in enumerate(names)]


def versions(python: str) -> dict[str, Any]:
    """Return the versions of an interpreter and of its torch and CUDA; empty: it does not start."""
    return ask_interpreter(python, _ASK) or {}


def accelerators(python: str) -> list[str]:
    """Return the names of the devices that an interpreter's torch can use; it is imported there."""
    return ask_interpreter(python, _ASK_DEVICES) or []


def ask_interpreter(python: str, code: str, cwd: str | None = None) -> Any:
    """Return what the last line that this code prints says as JSON; None: it cannot be asked."""
    try:
        ended = subprocess.run(
            [python, "-c", f"{SAFE_PATH}\n{code}"], cwd=cwd, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=_ASK_TIMEOUT_S, check=True,
        )  # fmt: skip
        return json.loads(ended.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, list[str]]:
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return platform.processor() or platform.machine(), []
    rows = [line.partition(":") for line in text.splitlines()]
    facts = {key.strip().lower(): value.strip() for key, _, value in reversed(rows)}  # first CPU
    name = facts.get("model name") or facts.get("hardware") or platform.machine()
    flags = (facts.get("flags") or facts.get("features") or "").split()
    return name, sorted({flag for flag in flags if _FEATURES.match(flag)})


def affinity() -> list[int]:
    """Return numbers of the logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cpus() -> float:
    """Return the smaller of affinity and cgroup quota, at least a tenth of a CPU."""
    quota = cpu_quota()
    count = float(len(affinity()))
    return count if quota is None else max(0.1, min(count, quota))


def cpu_quota(root: Path = CGROUPS, membership: str | None = None) -> float | None:
    """Return the CPUs that the tightest cgroup around us allows; None: no limit."""
    quotas: list[float] = []
    for folder in cgroups("cpu", root, membership):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            if (folder / "cpu.max").is_file():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{figure}_us").read_text() for figure in _CFS)
            quotas.append(float(quota) / float(period))
    return min((quota for quota in quotas if quota > 0), default=None)


def memory_limit_bytes(root: Path = CGROUPS, membership: str | None = None) -> int | None:
    """Return the memory that the tightest cgroup around us allows; None: no limit."""
    limits: list[int] = []
    for folder in cgroups("memory", root, membership):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def quota_stopped_s() -> float:
    """Return for how long the CPU quota has stopped threads of our cgroup; NaN: not counted."""
    for line in of_cgroup("cpu", "cpu.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in _STOPPED_UNITS:
            return int(value) / _STOPPED_UNITS[name]
    return math.nan


def of_cgroup(controller: str, name: str) -> str:
    """Return a file of the innermost cgroup around us that has it; "" where none has."""
    for folder in cgroups(controller):
        with contextlib.suppress(OSError):
            return (folder / name).read_text()
    return ""


def cgroups(controller: str, root: Path = CGROUPS, membership: str | None = None) -> Iterator[Path]:
    """Yield folders of our cgroup and of all above, for version 2 and one version 1 controller.

    Inside a container the path of /proc/self/cgroup may not exist below the mount: then the
    mount itself is our cgroup.
    """
    if membership is None:
        membership_file = Path("/proc/self/cgroup")
        membership = membership_file.read_text() if membership_file.exists() else ""
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            bases = [root, root / "unified"]
        elif controller in controllers.split(","):
            bases = [root / controller, root / controllers]
        else:
            continue
        for base in bases:
            folder = base / path.lstrip("/")
            while folder != base.parent:
                yield folder
                folder = folder.parent
