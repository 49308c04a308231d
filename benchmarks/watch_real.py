"""Real programs under `torchdoctor watch`, each changed in one way after two minutes.

    python benchmarks/watch_real.py [KIND ...]

Prints the rows of a table for docs/watch.md. A step is light: it sleeps as a device would work, so
that several run side by side. Needs root (control groups of version 1), bindfs and g++; "swap" a
swap file of 1 GB or more.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BEFORE_S, AFTER_S = 125.0, 85.0
CGROUPS = Path("/sys/fs/cgroup")
TRAIN = """
import os, sys, time, gc
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset
kind, folder = sys.argv[1], sys.argv[2]
torch.set_num_threads(1)
def changed():
    return os.path.exists(folder + "/changed")
class Data(Dataset):
    def __len__(self):
        return 10**9
    def __getitem__(self, i):
        now = on[0]
        if kind == "loader" and now:
            end = time.perf_counter() + 0.003
            while time.perf_counter() < end: pass
        if kind == "storage":
            with open(folder + "/data/%d" % (i % 64), "rb", buffering=0) as file:
                file.read(8192)
        if kind in ("memory", "swap"):
            at = np.random.randint(0, pages, 200) * 4096
            return torch.from_numpy(np.repeat(mapped[at] / 255.0, 3)[:512].astype(np.float32))
        size = 512 * 3 if kind == "sequences" and now else 512
        return torch.randn(size)
def batches():
    size = 8
    loader = DataLoader(Data(), batch_size=size)
    grown = DataLoader(Data(), batch_size=24)
    for batch in loader:
        if kind == "batch" and on[0]:
            yield from grown
        yield batch
on = [False]
if kind == "memory":
    with open(folder + "/mapped", "wb") as file:  # so that its pages are of this control group
        for _ in range(400): file.write(os.urandom(1 << 20))
    mapped = np.memmap(folder + "/mapped", dtype=np.uint8, mode="r")
if kind == "swap":
    mapped = np.random.randint(0, 255, 400 << 20, dtype=np.uint8)
if kind in ("memory", "swap"):
    pages = len(mapped) // 4096
rank = 0
if "RANK" in os.environ:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(512, 64), torch.nn.Linear(64, 1)
    def forward(self, x):
        n = x.shape[0] * (x.shape[1] // 512)
        work = 0.012 * n / 8 + (0.03 if kind == "rank" and rank == 2 and on[0] else 0)
        if kind in ("core", "quota"):
            end = time.perf_counter() + 0.03 if kind == "none" else None
            for _ in range(60): torch.relu(big @ big)
        else:
            time.sleep(work)
        return self.b(torch.relu(self.a(x.reshape(-1, 512)))).mean()
big = torch.randn(160, 160)
net = Net()
if kind == "recompilation":
    torch._dynamo.config.recompile_limit = torch._dynamo.config.cache_size_limit = 10**6
    inner = torch.nn.Sequential(torch.nn.Linear(512, 64), torch.nn.ReLU())
    inner = torch.compile(inner, backend="eager", dynamic=False)
if "RANK" in os.environ:
    net = torch.nn.parallel.DistributedDataParallel(net)
opt = torch.optim.SGD(net.parameters(), lr=1e-4)
kept, last, step = [], time.time(), 0
def evaluate(times):
    net.eval()
    with torch.no_grad():
        for _ in range(times): net(torch.randn(8, 512))
    net.train()
loader = Data()
size = 8
def run(loader):
    global last, step
    for x in loader:
        if step % 10 == 0: on[0] = changed()
        step += 1
        loss = net(x)
        if kind == "recompilation":
            k = step // 4 if on[0] and step % 4 == 0 else 0
            a = 1 + k % 40
            shape = a, 2000 // a - k // 40 % 25, 512
            loss = loss + inner(torch.randn(shape)).mean()
        if kind == "gc" and on[0]:
            kept.append([[] for _ in range(2000)])
            del kept[:-200]
            gc.collect()
        if kind == "leak" and on[0]: kept.append(np.ones(20_000))
        loss.backward(); opt.step(); opt.zero_grad()
        if kind == "evaluation" and time.time() - last > 15:
            evaluate(2400 if on[0] else 150); last = time.time()
        if kind == "batch" and on[0] and x.shape[0] == 8: return
run(DataLoader(Data(), batch_size=8))
run(DataLoader(Data(), batch_size=24))
"""
EXPECTED = {
    "loader": "loader-cpu-bound",
    "batch": "batch",
    "core": "other-load",
    "leak": "leak",
    "memory": "memory",
    "swap": "swapping",
    "quota": "quota-used-up",
    "storage": "loader-io-bound",
    "gc": "gc-pauses",
    "evaluation": "evaluation",
    "sequences": "sequences",
    "recompilation": "recompilation",
    "rank": "forward",
}


def _group(controller: str, name: str) -> Path:
    own = Path("/proc/self/cgroup").read_text().splitlines()
    path = next(line.split(":")[2] for line in own if f":{controller}:" in line)
    folder = CGROUPS / controller / path.lstrip("/") / name
    folder.mkdir(exist_ok=True)
    return folder


def _limit(group: Path, size: int) -> None:
    """Lower the limit of a memory group; the kernel refuses until enough of it is in swap."""
    for _ in range(60):
        try:
            (group / "memory.limit_in_bytes").write_text(str(size))
            return
        except OSError:
            time.sleep(0.5)


def measure(kind: str) -> str:
    """Break one thing under a watched training; return the row: what was told, and when."""
    folder = Path(tempfile.mkdtemp(prefix=f"watch-{kind}-"))
    (folder / "train.py").write_text(TRAIN)
    ending = _two_storages(folder) if kind == "storage" else []
    groups = _groups(kind)
    program = _start(kind, folder, groups)
    time.sleep(BEFORE_S)
    began_s = time.time()
    (folder / "changed").touch()
    others = _worsen(kind, folder, groups)
    told = _alerts(folder, program, began_s)
    if program.poll() is None:
        os.killpg(program.pid, signal.SIGTERM)
    for process in [program, *others]:
        process.terminate()
        process.wait(30)
    time.sleep(5)
    for command in ending:
        subprocess.run(command, check=False)
    shutil.rmtree(folder, ignore_errors=True)
    return _row(kind, told)


def _two_storages(folder: Path) -> list[list[str]]:
    """Mount a fast and a slow folder of the same files; return the commands that end them."""
    (folder / "files").mkdir()
    for number in range(64):
        (folder / "files" / str(number)).write_bytes(os.urandom(1 << 16))
    ending = []
    for name, rate in (("fast", []), ("slow", ["--read-rate=200k"])):
        (folder / name).mkdir()
        mount = [*rate, "-o", "direct_io", str(folder / "files"), str(folder / name)]
        subprocess.run(["bindfs", *mount], check=True)
        ending.append(["fusermount", "-u", "-z", str(folder / name)])
    (folder / "data").symlink_to("fast")
    return ending


def _groups(kind: str) -> list[Path]:
    """Make the control group that the program starts in, where a limit of it is lowered later."""
    if kind == "quota":
        return [_group("cpu", "watch-quota")]
    if kind not in ("leak", "memory", "swap"):
        return []
    group = _group("memory", f"watch-{kind}")
    limit = (2 << 30) if kind == "leak" else (1 << 30)
    (group / "memory.limit_in_bytes").write_text(str(limit))
    return [group]


def _start(kind: str, folder: Path, groups: list[Path]) -> subprocess.Popen[bytes]:
    script = [str(folder / "train.py"), kind, str(folder)]
    command = script if kind != "rank" else ["--", "torchrun", "--nproc-per-node", "4", *script]
    on_one_core = ["taskset", "-c", "0"] if kind == "core" else []
    bin_folder = Path(sys.executable).parent
    return subprocess.Popen(
        [*on_one_core, sys.executable, "-m", "torchdoctor", "watch", *command],
        cwd=folder,
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"},
        preexec_fn=lambda: [(group / "tasks").write_text(str(os.getpid())) for group in groups],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr").open("w"),
        start_new_session=True,
    )


def _worsen(kind: str, folder: Path, groups: list[Path]) -> list[subprocess.Popen[bytes]]:
    """Change what is outside of the program; return the processes that this started."""
    if kind == "storage":
        (folder / "data.new").symlink_to("slow")
        (folder / "data.new").replace(folder / "data")
    if kind in ("memory", "swap"):
        _limit(groups[0], 330 << 20 if kind == "memory" else 400 << 20)
    if kind == "quota":
        (groups[0] / "cpu.cfs_quota_us").write_text("20000")
    if kind != "core":
        return []
    return [subprocess.Popen(["taskset", "-c", "0", sys.executable, "-c", "while 1: pass"])]


def _alerts(
    folder: Path, program: subprocess.Popen[bytes], began_s: float
) -> list[tuple[float, dict]]:
    """Return each alert with the seconds after which it was told."""
    told: list[tuple[float, dict]] = []
    while time.time() - began_s < AFTER_S and program.poll() is None:
        time.sleep(1)
        alerts = [
            json.loads(line)
            for path in folder.glob("torchdoctor-runs/*/watch/alerts*.jsonl")
            for line in path.read_text().splitlines()
        ]
        told += [(time.time() - began_s, alert) for alert in alerts[len(told) :]]
    return told


def _row(kind: str, told: list[tuple[float, dict]]) -> str:
    right = [(at_s, alert) for at_s, alert in told if alert["cause"] == EXPECTED[kind] and at_s > 0]
    at_s, alert = (right or told or [(0.0, {"sentence": "nothing was told"})])[0]
    extra = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    return f"| {kind} | {'yes' if right else 'no'}{extra} | {at_s:.0f} s | {alert['sentence']} |"


if __name__ == "__main__":
    for chosen in sys.argv[1:] or EXPECTED:
        print(measure(chosen), flush=True)
