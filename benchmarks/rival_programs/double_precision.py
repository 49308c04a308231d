"""A regression on measurements that numpy made, with its numbers of 64 bits."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    table = np.random.default_rng(0).standard_normal((8192, 512))
    rows = TensorDataset(torch.from_numpy(table), torch.from_numpy(table[:, :1] ** 2))
    loader = DataLoader(rows, batch_size=256, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU())
    model.append(nn.Linear(512, 1))
    model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    done = 0
    while done < steps:
        for features, wanted in loader:
            loss = nn.functional.mse_loss(model(features), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % 50 == 0:
                print("step", done, "loss", loss.item(), flush=True)
            if done == steps:
                break


if __name__ == "__main__":
    main()
