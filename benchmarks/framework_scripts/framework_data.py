"""Made-up data and a model that the scripts share: preparing a sample costs more than training."""

import importlib.metadata
import time

import torch
from torch import nn
from torch.utils.data import Dataset

SAMPLE_S = 0.004  # of work that another process can do, as decoding an image is


class Images(Dataset):
    """240 images of 3x32x32 with ten classes; each one takes SAMPLE_S of a CPU."""

    def __init__(self, size=240):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        work()
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=generator), index % 10


def work():
    """Keep a CPU busy for as long as one sample costs."""
    end = time.thread_time() + SAMPLE_S
    while time.thread_time() < end:
        sum(range(200))


def small_model():
    """Return a convolutional network with ten outputs."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2048, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def counted(package, steps):
    """Print the line that benchmarks/frameworks.py reads: versions, and the framework's count."""
    versions = " ".join(f"{x} {importlib.metadata.version(x)}" for x in package.split())
    print(f"counted: {int(steps)} steps by {versions}", flush=True)
