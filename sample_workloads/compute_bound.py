"""Wide multilayer perceptron in float32.

Illness: nearly all of the step is large matrix products in float32, on a machine whose matrix units
    work in bfloat16.
Check expected: compute, low-precision-unused
Bottleneck expected: cpu; on a GPU: gpu
Fix expected: mixed-precision, cpu-bfloat16-products; on a CPU without bfloat16 units: none
"""

import argparse

import torch
from torch import nn

WIDTH = 1024
BATCH = 512
CLASSES = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    features = torch.randn(4 * BATCH, WIDTH)
    labels = (features @ torch.randn(WIDTH, CLASSES)).argmax(dim=1)
    features, labels = features.to(device), labels.to(device)
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, CLASSES),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for step in range(1, steps + 1):
        first = BATCH * (step % 4)
        loss = nn.functional.cross_entropy(
            model(features[first : first + BATCH]), labels[first : first + BATCH]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
