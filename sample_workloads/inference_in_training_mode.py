"""Classifier that scores images as it was trained: with dropout, batch statistics and gradients.

Illness: model.eval() and torch.inference_mode() are missing; results are wrong, and each call
    builds a graph for a backward pass that never comes.
Check expected: training-mode-left-on, inference-with-gradients
Bottleneck expected: cpu; on a GPU: gpu
Fix expected: eval-mode, inference-mode
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build_model() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 32, 64):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
        ]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    images = TensorDataset(torch.rand(256, 3, 32, 32))
    model = build_model().to(device)
    step = 0
    while step < steps:
        for (photos,) in DataLoader(images, batch_size=16):
            scores = model(photos.to(device)).softmax(dim=1)
            step += 1
            if step % 20 == 0 or step == steps:
                print(f"step {step} score {scores.max().item():.4f}", flush=True)
            if step == steps:
                break


if __name__ == "__main__":
    main()
