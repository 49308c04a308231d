"""Tabular classifier with the thread count of some larger machine.

Illness: torch.set_num_threads(64) came along from a server: on fewer cores the threads of every
    operation wait for each other.
Check expected: too-many-threads
Bottleneck expected: cpu
Fix expected: cpu-threads
"""

import argparse

import torch
from torch import nn

ROWS = 8192
FEATURES = 128
BATCH = 1024
CLASSES = 6

torch.set_num_threads(64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    steps = parser.parse_args().steps
    torch.manual_seed(0)

    # The table is small enough that this model trains on the CPU wherever it runs.
    table = torch.randn(ROWS, FEATURES)
    labels = (table @ torch.randn(FEATURES, CLASSES)).argmax(dim=1)
    model = nn.Sequential(
        nn.Linear(FEATURES, 256),
        nn.LayerNorm(256),
        nn.GELU(),
        nn.Linear(256, 256),
        nn.LayerNorm(256),
        nn.GELU(),
        nn.Linear(256, CLASSES),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for step in range(1, steps + 1):
        rows = slice(BATCH * (step % 8), BATCH * (step % 8 + 1))
        loss = nn.functional.cross_entropy(model(table[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
