"""The headline numbers of well-known guides, each claim beside what is measured here.

    python benchmarks/headlines.py [--budget 3m] [--only mixed-precision] [--json FILE]

For each claim a workload of the kind that its source describes, run by `torchdoctor run` with the
one fix that the claim is about, and that fix's speed-up with its 95 % interval, or why there is
none: a claim about a GPU says "needs a GPU" on a machine without one. Claims are their sources'
words, on their sources' hardware. It needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

EIGHTEEN_TIPS = "Optimize PyTorch Performance for Speed and Memory Efficiency (2022)"
GUIDE_2021 = "Faster Deep Learning Training with PyTorch, a 2021 Guide"
TOP_TIPS = "Top Tips and Tricks for PyTorch Model Training Performance Tuning [2023]"
HOW_TO = "How to actually optimize neural network training in PyTorch"

HEAD = """
import os, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
big = device == "cuda"
class Data(Dataset):
    def __init__(self, make, read_s=0.0):
        self.make, self.read_s = make, read_s
    def __len__(self):
        return 8192
    def __getitem__(self, index):
        time.sleep(self.read_s)
        return self.make(torch.Generator().manual_seed(index)), index % 10
def image(size):
    return lambda seed: torch.randn(3, size, size, generator=seed)
def row(width):
    return lambda seed: torch.randn(width, generator=seed)
def learn(model, loader, optimizer=None, low=False):
    model, loss_of = model.to(device), nn.CrossEntropyLoss()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(1000):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            with torch.autocast(device, torch.bfloat16, enabled=low):
                loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
def convolutions(width, depth):
    layers = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
"""
REMOTE = (
    HEAD
    + """
if __name__ == "__main__":
    learn(nn.Linear(256, 10), DataLoader(Data(row(256), read_s=0.005), batch_size=16))
"""
)
WORKERS = (
    HEAD
    + """
if __name__ == "__main__":
    # Preparing a batch and learning from it take about as long as each other.
    model = convolutions(64, 4) if big else nn.Sequential(nn.AvgPool2d(8), convolutions(32, 2))
    learn(model, DataLoader(Data(image(224)), batch_size=32, shuffle=True))
"""
)
BATCH = (
    HEAD
    + """
if __name__ == "__main__":
    data = Data(row(256))
    inputs = torch.stack([data[n][0] for n in range(4096)])
    labels = torch.arange(4096) % 10
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    learn(model, DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size=64))
"""
)
PRODUCTS = (
    HEAD
    + """
if __name__ == "__main__":
    width, tokens = (1024, 512) if big else (256, 64)
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.head = nn.TransformerEncoder(layer, 4), nn.Linear(width, 10)
        def forward(self, x):
            return self.head(self.blocks(x).mean(1))
    x, y = torch.randn(16, tokens, width, device=device), torch.arange(16, device=device) % 10
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
)
GELU = (
    HEAD
    + """
def gelu(x):
    return x * 0.5 * (1.0 + torch.erf(x / 1.41421))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
    def forward(self, x):
        x = x * self.scale
        for _ in range(8):
            x = gelu(x)
        return x
if __name__ == "__main__":
    x = torch.randn(2**24 if big else 2**20, device=device)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
)
IMAGES = (
    HEAD
    + """
if __name__ == "__main__":
    size, width = (224, 128) if big else (32, 64)
    x, y = torch.randn(32, 3, size, size, device=device), torch.arange(32, device=device) % 10
    class Same:
        def __iter__(self):
            return ((x, y) for _ in range(1000))
    learn(convolutions(width, 6), Same(), low=LOW)
"""
)
MANY_TENSORS = (
    HEAD
    + """
if __name__ == "__main__":
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(60)), nn.Linear(128, 10)).to(device)
    x, y = torch.randn(256, 128, device=device), torch.arange(256, device=device) % 10
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    while True:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a source says of one change, and a program of the kind that it speaks of.

    program: "" where no run can apply the change. memory: the claim is about memory, not time.
    """

    name: str
    fix: str
    says: str
    source: str
    program: str = ""
    needs_gpu: bool = False
    changes_training: bool = False
    memory: bool = False


CLAIMS = [
    Claim(
        name="data-loading", fix="loader-workers", program=REMOTE, source=TOP_TIPS,
        says="up to 10x from faster data loading",
    ),
    Claim(
        name="workers", fix="loader-workers", program=WORKERS, source=GUIDE_2021,
        says="2x from several workers and pinned memory (here the workers)",
    ),
    Claim(
        name="pinning", fix="pin-memory", program=WORKERS, source=GUIDE_2021,
        says="2x from several workers and pinned memory (here the pinning)", needs_gpu=True,
    ),
    Claim(
        name="batch-size", fix="larger-batch", program=BATCH, source=GUIDE_2021,
        says="4x per sample from a batch of 512 in place of 64 (here 128 and 256)",
        changes_training=True,
    ),
    Claim(
        name="mixed-precision", fix="mixed-precision", program=PRODUCTS, source=GUIDE_2021,
        says="2x, at most 5.5x, on a V100",
    ),
    Claim(
        name="fused-gelu", fix="torch-compile", program=GELU, source=EIGHTEEN_TIPS,
        says="4 to 5x of a GELU by fusing its operators",
    ),
    Claim(
        name="multiples-of-8", fix="pad-to-multiple", source=EIGHTEEN_TIPS,
        says="1.3 to 4x of matrix products whose sizes are multiples of 8", needs_gpu=True,
    ),
    Claim(
        name="cudnn-benchmark", fix="cudnn-benchmark", source=EIGHTEEN_TIPS,
        program=IMAGES.replace("LOW", "False"), says="1.27x forward and backward", needs_gpu=True,
    ),
    Claim(
        name="channels-last", fix="channels-last", program=IMAGES.replace("LOW", "True"),
        source=EIGHTEEN_TIPS, says="8 to 35 % together with mixed precision",
    ),
    Claim(
        name="fused-optimizer", fix="fused-optimizer", program=MANY_TENSORS, source=GUIDE_2021,
        says="5 % from a fused optimizer",
    ),
    Claim(
        name="checkpointing", fix="activation-checkpointing", program=PRODUCTS, source=HOW_TO,
        says="8 to 10 times less memory for deep models", needs_gpu=True, memory=True,
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One row: `speedup` and `memory_bytes` None where there is no measurement; `said` says why."""

    name: str
    says: str
    source: str
    speedup: dict[str, float] | None = None
    verdict: str = ""
    memory_change_bytes: int | None = None
    machine: str = ""
    said: str = ""


def measured(claim: Claim, has_gpu: bool, budget: str) -> Measured:
    """Run one claim's workload, or say why it cannot be run here."""
    bare = Measured(name=claim.name, says=claim.says, source=claim.source)
    if claim.needs_gpu and not has_gpu:
        return _with(bare, said="needs a GPU")
    if not claim.program:
        return _with(bare, said="no run can change a model's sizes: see its page")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(claim.program, encoding="utf-8")
        command = [
            sys.executable, "-m", "torchdoctor.cli.front", "run", "--quiet", "--fixes", claim.fix,
            "--budget", budget, "--output", "out",
            *(["--allow-training-changes"] if claim.changes_training else []), "train.py",
        ]  # fmt: skip
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        file = Path(folder) / "out" / "report.json"
        if not file.is_file():
            last = " ".join(ran.stderr.split())[-300:] or "nothing"
            return _with(bare, said=f"no report ({ran.returncode}): {last}")
        return judged(claim, json.loads(file.read_text(encoding="utf-8")))


def judged(claim: Claim, report: dict[str, Any]) -> Measured:
    """What a report says of the claim's fix: its best trial that was measured, or why none was."""
    environment = report["environment"]
    gpus = [gpu["name"] for gpu in environment.get("gpus") or ()]
    bare = Measured(
        name=claim.name, says=claim.says, source=claim.source,
        machine=", ".join([str(environment.get("cpu")), *gpus]),
    )  # fmt: skip
    trials = [trial for trial in report["trials"] if claim.fix in trial["fixes"]]
    timed = [trial for trial in trials if trial["speedup"]]
    if not timed:
        reasons = [trial["reason"] for trial in trials if trial["reason"]]
        return _with(bare, said=(reasons or ["it was not tried"])[0])
    best = max(timed, key=lambda trial: trial["speedup"]["estimate"])
    return _with(
        bare,
        speedup=best["speedup"],
        verdict=best["verdict"],
        memory_change_bytes=best["memory_change_bytes"] if claim.memory else None,
        said=best["reason"] or "",
    )


def _with(row: Measured, **changes: Any) -> Measured:
    return Measured(**{**asdict(row), **changes})


def shown(row: Measured) -> str:
    """One line of the table."""
    figure = "-"
    if row.speedup is not None:
        figure = "{estimate:.2f}x ({low:.2f}-{high:.2f})".format(**row.speedup)
    if row.memory_change_bytes is not None:
        figure += f", {row.memory_change_bytes / 1e6:+.0f} MB"
    cells = [row.name, row.says, row.source, figure, row.verdict or "-", row.machine, row.said]
    return " | ".join(cells)


def _has_gpu() -> bool:
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def main() -> None:
    """Print a line for each claim as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="3m", help="of each claim")
    parser.add_argument("--only", help="names of claims, comma-separated")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--names", action="store_true", help="print the claims' names alone")
    given = parser.parse_args()
    if given.names:
        print(*(claim.name for claim in CLAIMS), sep="\n")
        return
    wanted = given.only.split(",") if given.only else [claim.name for claim in CLAIMS]
    has_gpu = _has_gpu()
    rows = []
    print("claim | what the source says | source | measured here | verdict | machine | remarks")
    for claim in CLAIMS:
        if claim.name in wanted:
            rows.append(measured(claim, has_gpu, given.budget))
            print(shown(rows[-1]), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
