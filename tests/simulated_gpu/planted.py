"""Programs with a planted illness on the simulated device: what costs what is known exactly.

Each is the same training loop with another part put in. `LOOP` is completed by `Planted.program`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from light_torch import LIGHT

from simulated_gpu import devices

_BRANCHES = {
    "Is data loader time high?": "data_loader",
    "Is memory copy time high?": "memcpy",
    "Is communication time high?": "communication",
    "Is GPU utilization high?": "gpu",
    "Is CPU execution high?": "cpu",
    "Is anything else high?": "other",
}
_BESIDE = 'x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)'
_SLACK = 0.02  # of the step, between a planted share and the one that is found

LOOP = """
import simulated_gpu.attach
import time
import torch
{light}from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)

class Data(Dataset):
    def __len__(self):
        return {samples}
    def __getitem__(self, index):
        {sample}
        return torch.full(({features},), index / 1000.0), index % 4

if __name__ == "__main__":
    loader = DataLoader(Data(), batch_size={batch}, {loader})
    model = nn.Sequential(nn.Linear({features}, 64), nn.ReLU(), nn.Linear(64, 4)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    {before}
    for epoch in range(1000):
        for x, y in loader:
            {copy}
            {step}
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            {after}
        {epoch_end}
"""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One illness.

    Attributes:
        settings: of the device.
        bottleneck: that the diagnosis has to name (`diagnosis.bottleneck`); several may be right.
        finding: a check that has to be found; "" for none in particular.
        line: text of the source line that the finding's place has to be.
        says: text that some evidence has to contain.
        not_found: checks that must not be found.
        fix: that has to be recommended; "" for none in particular.
        options: of torchdoctor, that the fix needs.
        ranks: processes that train together.
        cured: the parts of the program that are otherwise where the fix is made permanent; a name
            in braces is a setting of the fix.
        nvml: lines of the NVML state file.
    """

    settings: str = ""
    bottleneck: Sequence[str] = ()
    finding: str = ""
    line: str = ""
    says: str = ""
    not_found: Sequence[str] = ()
    fix: str = ""
    options: Sequence[str] = ()
    cured: Mapping[str, str] = field(default_factory=dict)
    nvml: str = "devices=1\n"
    ranks: int = 1
    samples: int = 4096
    features: int = 64
    batch: int | str = 16
    sample: str = "pass"
    loader: str = "pin_memory=True"
    before: str = "pass"
    copy: str = _BESIDE
    step: str = "pass"
    after: str = "pass"
    epoch_end: str = "pass"

    @property
    def program(self) -> str:
        """The script's text."""
        parts = {
            name: getattr(self, name)
            for name in (
                *("samples", "features", "batch", "sample", "loader", "before"),
                *("copy", "step", "after", "epoch_end"),
            )
        }
        return LOOP.format(light=LIGHT, **parts)

    def truth(self, folder: Path, fixed_by: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what the program spends without torchdoctor, as simulated_gpu.truth says it.

        With `fixed_by`, settings of the fix: the program in which that is made permanent.
        """
        parts: dict[str, Any] = {}
        if fixed_by is not None:
            parts = {name: text.format(**fixed_by) for name, text in self.cured.items()}
        planted = replace(self, **parts)
        script, path = folder / "alone.py", folder / "truth.json"
        assert self.ranks == 1
        script.write_text(planted.program, encoding="utf-8")
        told = {"SIMULATED_GPU": self.settings, "SIMULATED_TRUTH": str(path)}
        subprocess.run(
            [sys.executable, str(script)],
            env={**devices.environment(), **told},
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=300,
        )
        truth: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return truth

    def report(self, folder: Path, *options: str, kind: str = "cuda") -> dict[str, Any]:
        """Return report.json of `torchdoctor run` on the simulated device."""
        (folder / "train.py").write_text(devices.named(self.program, kind), encoding="utf-8")
        launcher = ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
        started = [*launcher, str(self.ranks)] if self.ranks > 1 else []
        # From a program that imports the device before torch, no launch could be forked.
        command = ["run", "--no-fork", *options, "--output", "run", *started, "train.py"]
        nvml = self.nvml if kind == "cuda" else ""
        ended = devices.doctor(folder, *command, settings=self.settings, nvml=nvml, kind=kind)
        assert ended.returncode == 0, ended.stderr[-2000:]
        path = folder / "run" / "report.json"
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return report

    def mistakes(self, report: dict[str, Any], truth: dict[str, Any] | None = None) -> list[str]:
        """Return what the diagnosis says otherwise than it was planted."""
        diagnosis = report["diagnosis"]
        findings = {finding["check"]: finding for finding in reversed(diagnosis["findings"])}
        evidence = str([finding["evidence"] for finding in diagnosis["findings"]])
        wrong = [f"{check} found" for check in self.not_found if check in findings]
        if self.bottleneck and diagnosis["bottleneck"] not in self.bottleneck:
            wrong.append(f"bottleneck {diagnosis['bottleneck']}")
        if self.finding and self.finding not in findings:
            wrong.append(f"{self.finding} not found")
        elif self.line:
            place = findings[self.finding]["location"]
            text = self.program.splitlines()[place["line"] - 1] if place else "no place"
            wrong += [] if self.line in text else [f"place: {text.strip()}"]
        if self.says not in evidence:
            wrong.append(f"not said: {self.says}")
        if truth is not None:
            known = shares(report)
            for name, share in truth["shares"].items():
                if share > _SLACK and abs(share - known.get(name, 0.0)) > _SLACK:
                    wrong.append(f"{name} {known.get(name, 0.0):.0%} instead of {share:.0%}")
        return wrong


def shares(report: dict[str, Any]) -> dict[str, float]:
    """Return the shares that a report shows, by branch of the tree."""
    return {
        _BRANCHES[row["question"]]: row["value"]
        for row in report["diagnosis"]["path"]
        if row["question"] in _BRANCHES and row["value"] is not None
    }


_COPIED = 'x, y = x.to("cuda"), y.to("cuda")'
# What is planted is long beside what the host really computes, also on a machine that is busy.
# Five products a step, forward and backward:
_BUSY = "kernel:mm=24000"

_DEEP = """model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(12)), model).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, """

# The host is ahead by more launches than the queue holds, most of which are the optimizer's.
_QUEUE = "kernel:mm=20000;queue=64"
_HOST_COSTS = [
    *("optimizer-share", "single-tensor-optimizer", "sync-in-step"),
    *("many-small-kernels", "python-overhead", "outside-operators"),
]

PLANTED = {
    "gpu-bound": Planted(
        settings=_BUSY,
        bottleneck=["gpu"],
        finding="compute",
        not_found=["sync-in-step", "pageable-copies", "data-wait", "many-small-kernels"],
    ),
    "pageable-copies": Planted(
        settings="pageable_gbytes_per_s=0.001;pinned_gbytes_per_s=0.01",
        features=2048,
        loader="",
        copy=_COPIED,
        bottleneck=["memcpy"],
        finding="pageable-copies",
        line='x.to("cuda")',
        fix="pin-memory",
        cured={"loader": "pin_memory=True", "copy": _BESIDE},
    ),
    "blocking-copies-of-pinned-memory": Planted(
        settings="pinned_gbytes_per_s=0.002;kernel:mm=2000",
        features=2048,
        copy=_COPIED,
        after="time.sleep(0.06)",  # beside which the device could copy
        bottleneck=["memcpy"],
        finding="copy-without-pinning",
        fix="pin-memory",
        cured={"copy": _BESIDE},
        not_found=["pageable-copies"],
    ),
    "a-value-read-in-each-step": Planted(
        # What the host does then is planted too, so that it stands out on any machine.
        settings=_BUSY,
        after="print(loss.item()); time.sleep(0.04)",
        bottleneck=["gpu"],
        finding="sync-in-step",
        line="loss.item()",
    ),
    "a-value-read-from-a-device-that-no-profiler-sees": Planted(
        settings=_BUSY + ";profiler=0",
        nvml="",
        after="print(loss.item()); time.sleep(0.04)",
        bottleneck=["gpu"],
        finding="sync-in-step",
        line="loss.item()",
    ),
    "a-value-read-through-a-driver-of-another-maker": Planted(
        settings=_BUSY + ";names=drv ",
        after="print(loss.item()); time.sleep(0.04)",
        bottleneck=["gpu"],
        finding="sync-in-step",
        line="loss.item()",
    ),
    "the-optimizer-waits-for-the-queue": Planted(
        settings=_QUEUE + ";profiler=0",
        nvml="",
        before=_DEEP + "foreach=False)",
        bottleneck=["gpu"],
        not_found=_HOST_COSTS,
    ),
    "the-optimizer-waits-for-the-queue-by-the-host-s-clock": Planted(
        settings=_QUEUE + ";profiler=0;event_times=0",
        nvml="",
        before=_DEEP + "foreach=False)",
        not_found=_HOST_COSTS,  # who is the limit is not known then
    ),
    "a-tensor-printed-in-each-step": Planted(
        settings=_BUSY,
        after="print(loss); time.sleep(0.04)",
        bottleneck=["gpu"],
        finding="sync-in-step",
        line="print(loss)",
    ),
    "predictions-copied-back-in-each-step": Planted(
        settings=_BUSY,
        after="kept = loss.detach().cpu(); time.sleep(0.04)",
        bottleneck=["gpu"],
        finding="sync-in-step",
        line="loss.detach().cpu()",
    ),
    "launch-bound": Planted(
        settings="kernel_us=8;launch_us=40",
        step="for _ in range(300): x = x * 1.0001",
        bottleneck=["cpu"],
        finding="many-small-kernels",
        not_found=["sync-in-step"],
    ),
    "small-batches": Planted(  # a step costs hardly more with a larger batch
        settings="kernel_us=2;launch_us=100",
        step="for _ in range(100): x = x * 1.0001",
        # Labels that no input tells: gradients are noise, and larger batches waste none of it.
        sample="return torch.randn(64), torch.randint(4, ()).item()",
        bottleneck=["cpu"],
        finding="batch-too-small",
        fix="larger-batch",
        options=["--allow-training-changes"],
        cured={"batch": "{batch_size}"},
    ),
    "parameters-updated-one-by-one": Planted(  # launches that a graph or a fused kernel saves
        settings="kernel_us=2;launch_us=200",
        before=_DEEP + "foreach=False)",
        bottleneck=["cpu"],
        finding="single-tensor-optimizer",
        line="torch.optim.AdamW",
        fix="fused-optimizer",
        cured={"before": _DEEP + "fused={fused})"},
    ),
    "slow-loader": Planted(
        sample="time.sleep(0.005)",
        bottleneck=["data_loader"],
        finding="loader-io-bound",
        line="loader = DataLoader",
        fix="loader-workers",
        cured={"loader": "pin_memory=True, num_workers={num_workers}"},
    ),
    "slow-loader-behind-the-gpu": Planted(
        settings="kernel:mm=40000",
        sample="time.sleep(0.002)",
        loader="pin_memory=True, num_workers=1",
        bottleneck=["gpu"],
        not_found=["loader-io-bound", "loader-cpu-bound"],
    ),
    "tensors-made-on-the-host": Planted(
        settings="pageable_gbytes_per_s=0.01",
        step='weights = torch.ones(64, 4096).to("cuda")',
        bottleneck=["memcpy", "cpu"],
        finding="host-made-tensors",
        line="torch.ones(64, 4096)",
        fix="tensor-on-device",
        cured={"step": 'weights = torch.ones(64, 4096, device="cuda")'},
    ),
    "float32-products": Planted(
        settings="gflops=0.05;gflops_low=0.4",
        features=1024,
        bottleneck=["gpu"],
        finding="tf32-off",
        fix="tf32",
        cured={"before": "torch.backends.cuda.matmul.allow_tf32 = True"},
    ),
    "validation-with-gradients": Planted(
        settings="kernel:mm=10000",
        samples=256,
        epoch_end="""model.eval()
        for x, y in loader:
            model(x.to("cuda")).argmax(1)
        model.train()""",
        bottleneck=["gpu"],
        finding="evaluation-with-gradients",
    ),
    "memory-near-its-limit": Planted(
        settings="memory_mb=64;kernel:mm=10000",
        before='kept = torch.empty(58 << 20, dtype=torch.uint8, device="cuda")',
        bottleneck=["gpu"],
        finding="memory-near-limit",
        nvml="devices=1\nmemory=67108864\n",
    ),
    "emptied-cache": Planted(
        settings=_BUSY,
        after="""torch.cuda.empty_cache()
            time.sleep(0.04)  # beside which the device could compute""",
        finding="allocator-thrash",
        line="torch.cuda.empty_cache()",
        bottleneck=["gpu", "cpu"],
        fix="remove-sync",
        cured={"after": "time.sleep(0.04)"},
    ),
    "throttled-clocks": Planted(
        settings=_BUSY,
        nvml="devices=1\nthrottle=4\nsm_mhz=900\n",
        bottleneck=["gpu"],
        finding="throttling",
    ),
    "another-process-on-the-gpu": Planted(
        settings=_BUSY,
        nvml="devices=1\npids=1\nused=536870912\n",
        bottleneck=["gpu"],
        finding="other-load",
        says="on the GPU of this training",
    ),
    "idle-at-epoch-ends": Planted(
        settings="kernel:mm=16000",
        samples=256,
        epoch_end="time.sleep(3)",
        bottleneck=["other"],
        finding="step-outliers",
        line="time.sleep(3)",
        not_found=["inline-batch-preparation", "data-wait"],
    ),
    "two-ranks-with-a-straggler": Planted(
        settings="kernel:mm=4000",
        ranks=2,
        before="""import torch.distributed as dist
    dist.init_process_group("gloo")
    def average(*_):
        for p in model.parameters():
            gradient = p.grad.cpu()
            dist.all_reduce(gradient)
            p.grad.copy_(gradient / 2)
    optimizer.register_step_pre_hook(average)""",
        step="time.sleep(0.1 * dist.get_rank())",
        bottleneck=["communication", "other"],  # as rank 0 sees it, and rank 1
        finding="rank-imbalance",
        says="Rank 1 works",
    ),
    "clean": Planted(
        settings=_BUSY,
        bottleneck=["gpu"],
        not_found=[
            *("sync-in-step", "pageable-copies", "copy-without-pinning", "data-wait"),
            *("many-small-kernels", "host-made-tensors", "allocator-thrash", "memory-near-limit"),
            "throttling",
        ],
    ),
}
