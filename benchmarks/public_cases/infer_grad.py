"""Score image pairs with a siamese network over a folder of (made-up) crops."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        layers, channels = [], 3
        for width in (16, 32, 64, 64):
            layers += [
                nn.Conv2d(channels, width, 3, padding=1),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Dropout(0.1),
            ]
            channels = width
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, left, right):
        return nn.functional.cosine_similarity(self.body(left), self.body(right))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Siamese()
    pairs = TensorDataset(torch.rand(512, 3, 32, 32), torch.rand(512, 3, 32, 32))
    loader = DataLoader(pairs, batch_size=16)
    done, start = 0, time.perf_counter()
    while done < args.steps:
        for left, right in loader:
            score = model(left, right)
            done += 1
            if done % 200 == 0:
                print(done, float(score.mean()))
            if done >= args.steps:
                break
    print(f"seconds {time.perf_counter() - start:.3f}")


if __name__ == "__main__":
    main()
