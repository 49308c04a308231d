"""A regression on tables, which keeps its newest state on disk."""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(8192, 256), torch.randn(8192, 1))
    loader = DataLoader(rows, batch_size=128, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    model.append(nn.Linear(1024, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    newest = Path(tempfile.mkdtemp()) / "newest.pt"
    done = 0
    while done < steps:
        for features, wanted in loader:
            loss = nn.functional.mse_loss(model(features), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, newest)
            done += 1
            if done % 50 == 0:
                print("step", done, "loss", loss.item(), flush=True)
            if done == steps:
                break


if __name__ == "__main__":
    main()
