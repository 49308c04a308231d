"""Image classifier that copies from ordinary memory and reads results back at every step.

Illness: batches go to the GPU from pageable memory, and .item() makes the CPU wait for the GPU
    three times a step. Without a GPU there is nothing to copy or wait for: the script says so and
    trains.
Check expected: pageable-copies, sync-in-step; without a GPU: none
Bottleneck expected: memcpy; without a GPU: cpu, data_loader
Fix expected: pin-memory; without a GPU: none
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES = 512
SIDE = 112
BATCH = 64
CLASSES = 10


class Photos(Dataset):
    """Made-up photos that are ready in memory: fetching one costs next to nothing."""

    def __init__(self) -> None:
        self.labels = torch.randint(0, CLASSES, (SAMPLES,))
        self.photos = torch.randn(SAMPLES, 3, SIDE, SIDE) + self.labels[:, None, None, None] / 5

    def __len__(self) -> int:
        return SAMPLES

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.photos[rows], self.labels[rows]


def take_whole(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        print("no GPU: this script trains all the same, but has no copies to make", flush=True)

    loader = DataLoader(Photos(), batch_size=BATCH, shuffle=True, collate_fn=take_whole)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=8, padding=3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, CLASSES),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    step = 0
    running_loss = running_hits = largest = 0.0
    while step < steps:
        for photos, labels in loader:
            photos, labels = photos.to(device), labels.to(device)
            scores = model(photos)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
            running_hits += (scores.argmax(dim=1) == labels).sum().item()
            largest = max(largest, photos.abs().max().item())
            step += 1
            if step % 20 == 0 or step == steps:
                mean = running_loss / step
                print(f"step {step} loss {mean:.4f} hits {running_hits:.0f}", flush=True)
            if step == steps:
                break
    print(f"largest pixel {largest:.2f}")


if __name__ == "__main__":
    main()
