"""Sensor-record classifier whose samples come from a slow network store, one at a time.

Illness: every sample costs a round trip to the store (a real wait of some milliseconds that uses no
    CPU), and the DataLoader asks for one after the other.
Check expected: loader-io-bound
Bottleneck expected: data_loader
Fix expected: loader-workers, persistent-workers
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROUND_TRIP_S = 0.002
FEATURES = 512
CLASSES = 8


def write_records(folder: Path, count: int) -> None:
    """Write `count` records of FEATURES float32 values, each into a file of its own."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, FEATURES))
    for index in range(count):
        values = centres[index % CLASSES] + rng.standard_normal(FEATURES)
        (folder / f"{index:05d}.f32").write_bytes(values.astype(np.float32).tobytes())


class RemoteRecords(Dataset):
    """Records behind a network: each read waits for one round trip."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.f32"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        # The wait stands for the network: the thread sleeps, as it would in a socket's recv().
        time.sleep(ROUND_TRIP_S)
        values = np.frombuffer(bytearray(self.paths[index].read_bytes()), dtype=np.float32)
        return torch.from_numpy(values), index % CLASSES


def train(folder: Path, steps: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(RemoteRecords(folder), batch_size=16, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Linear(FEATURES, 1024),
        nn.ReLU(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()

    step = 0
    while step < steps:
        for values, labels in loader:
            loss = loss_function(model(values.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0 or step == steps:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == steps:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="storage_latency_") as folder:
        write_records(Path(folder), 1600)
        train(Path(folder), steps)


if __name__ == "__main__":
    main()
