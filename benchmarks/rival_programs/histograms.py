"""A classifier that watches how its weights are spread."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def spread(model):
    return {name: torch.histc(value.detach(), bins=64) for name, value in model.named_parameters()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(4096, 256), torch.randint(10, (4096,)))
    loader = DataLoader(rows, batch_size=64, shuffle=True, drop_last=True)
    layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    done = 0
    while done < steps:
        for features, labels in loader:
            loss = nn.functional.cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            histograms = spread(model)
            if done % 50 == 0:
                largest = max(float(counts.max()) for counts in histograms.values())
                print("step", done, "loss", loss.item(), "largest bin", largest, flush=True)
            if done == steps:
                break


if __name__ == "__main__":
    main()
