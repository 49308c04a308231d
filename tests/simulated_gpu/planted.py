"""Programs with a planted illness on the simulated device: what costs what is known exactly.

Each is the same training loop with another part put in. `LOOP` is completed by `Planted.program`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LOOP = """
import simulated_gpu.attach
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)

class Data(Dataset):
    def __len__(self):
        return {samples}
    def __getitem__(self, index):
        {sample}
        return torch.full(({features},), index / 1000.0), index % 4

if __name__ == "__main__":
    loader = DataLoader(Data(), batch_size=16, {loader})
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
        nvml: lines of the NVML state file.
    """

    settings: str = ""
    bottleneck: Sequence[str] = ()
    finding: str = ""
    line: str = ""
    says: str = ""
    not_found: Sequence[str] = ()
    nvml: str = "devices=1\n"
    samples: int = 4096
    features: int = 64
    sample: str = "pass"
    loader: str = "pin_memory=True"
    before: str = "pass"
    copy: str = 'x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)'
    step: str = "pass"
    after: str = "pass"
    epoch_end: str = "pass"

    @property
    def program(self) -> str:
        """The script's text."""
        parts = {
            name: getattr(self, name)
            for name in (
                *("samples", "features", "sample", "loader", "before"),
                *("copy", "step", "after", "epoch_end"),
            )
        }
        return LOOP.format(**parts)


_COPIED = 'x, y = x.to("cuda"), y.to("cuda")'
# Kernels of two products and their gradients that together take tens of milliseconds.
_BUSY = "kernel:mm=8000"

PLANTED = {
    "gpu-bound": Planted(
        settings=_BUSY,
        bottleneck=["gpu"],
        finding="compute",
        not_found=["sync-in-step", "pageable-copies", "data-wait", "many-small-kernels"],
    ),
    "pageable-copies": Planted(
        settings="pageable_gbytes_per_s=0.02;pinned_gbytes_per_s=0.2",
        features=8192,
        loader="",
        copy=_COPIED,
        bottleneck=["memcpy"],
        finding="pageable-copies",
        line='x.to("cuda")',
    ),
    "blocking-copies-of-pinned-memory": Planted(
        settings="pinned_gbytes_per_s=0.03;" + _BUSY,
        features=8192,
        copy=_COPIED,
        bottleneck=["memcpy", "gpu"],
        finding="copy-without-pinning",
        not_found=["pageable-copies"],
    ),
    "a-value-read-in-each-step": Planted(
        # What the host does then is planted too, so that it stands out on any machine.
        settings=_BUSY,
        after="print(loss.item()); time.sleep(0.01)",
        bottleneck=["gpu"],
        finding="sync-in-step",
        line="loss.item()",
    ),
    "launch-bound": Planted(
        settings="kernel_us=2",
        step="for _ in range(300): x = x * 1.0001",
        bottleneck=["cpu"],
        finding="many-small-kernels",
        not_found=["sync-in-step"],
    ),
    "slow-loader": Planted(
        sample="time.sleep(0.002)",
        bottleneck=["data_loader"],
        finding="loader-io-bound",
        line="loader = DataLoader",
    ),
    "slow-loader-behind-the-gpu": Planted(
        settings="kernel:mm=40000",
        sample="time.sleep(0.002)",
        loader="pin_memory=True, num_workers=1",
        bottleneck=["gpu"],
        not_found=["loader-io-bound", "loader-cpu-bound"],
    ),
    "tensors-made-on-the-host": Planted(
        settings="pageable_gbytes_per_s=0.05",
        step='weights = torch.ones(64, 4096).to("cuda")',
        bottleneck=["memcpy", "cpu"],
        finding="host-made-tensors",
        line="torch.ones(64, 4096)",
    ),
    "float32-products": Planted(
        settings="gflops=0.5;gflops_low=4",
        features=1024,
        bottleneck=["gpu"],
        finding="tf32-off",
    ),
    "validation-with-gradients": Planted(
        settings="kernel:mm=1500",
        samples=256,
        epoch_end="""model.eval()
        for x, y in loader:
            model(x.to("cuda")).argmax(1)
        model.train()""",
        bottleneck=["gpu"],
        finding="evaluation-with-gradients",
    ),
    "memory-near-its-limit": Planted(
        settings="memory_mb=64;kernel:mm=2000",
        before='kept = torch.empty(58 << 20, dtype=torch.uint8, device="cuda")',
        bottleneck=["gpu"],
        finding="memory-near-limit",
        nvml="devices=1\nmemory=67108864\n",
    ),
    "emptied-cache": Planted(
        settings="kernel:mm=1000",
        after="torch.cuda.empty_cache()",
        finding="allocator-thrash",
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
        settings="kernel:mm=1000",
        samples=512,
        epoch_end="time.sleep(0.5)",
        bottleneck=["other"],
        finding="step-outliers",
        line="time.sleep(0.5)",
        not_found=["inline-batch-preparation", "data-wait"],
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
