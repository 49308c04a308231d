"""Image classifier that mixes neighbours by pooling and channels by 1x1 convolutions, in NCHW.

Illness: tensors are stored channel by channel (NCHW), while the convolution and pooling kernels
    work best with the channels of one pixel side by side.
Check expected: convolutions-nchw
Bottleneck expected: cpu; on a GPU: gpu
Fix expected: channels-last
"""

import argparse

import torch
from torch import nn

SIDE = 48
BATCH = 8
CHANNELS = 32
CLASSES = 10


def mixing(channels: int) -> list[nn.Module]:
    return [
        nn.MaxPool2d(3, stride=1, padding=1),
        nn.Conv2d(channels, channels, 1),
        nn.ReLU(),
    ]


def build_model() -> nn.Module:
    stem = [nn.Conv2d(3, CHANNELS, 3, padding=1), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, CLASSES)]
    return nn.Sequential(*stem, *mixing(CHANNELS), *mixing(CHANNELS), *mixing(CHANNELS), *head)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    photos = torch.randn(32 * BATCH, 3, SIDE, SIDE)
    labels = (10 * (photos[:, 0].mean(dim=(1, 2)) * SIDE).sigmoid()).long().clamp(0, CLASSES - 1)
    photos, labels = photos.to(device), labels.to(device)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for step in range(1, steps + 1):
        rows = slice(BATCH * (step % 32), BATCH * (step % 32 + 1))
        loss = nn.functional.cross_entropy(model(photos[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
