"""Scores images with a trained network."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(128, 128), nn.BatchNorm1d(128))]
    model = nn.Sequential(*layers, nn.Linear(128, 4))
    loader = DataLoader(TensorDataset(torch.randn(4096, 128)), batch_size=256)
    done, scores = 0, []
    while done < steps:
        for (rows,) in loader:
            scores.append(model(rows).softmax(1)[:, 0].mean().item())
            done += 1
            if done % 50 == 0:
                print("step", done, "score", sum(scores) / len(scores), flush=True)
            if done == steps:
                break


if __name__ == "__main__":
    main()
