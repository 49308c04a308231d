"""A recurrent model of sensor readings, whose cell is written out."""

import argparse

import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.gates = nn.Linear(features + width, 3 * width)
        self.width = width

    def forward(self, value, state):
        joined = self.gates(torch.cat([value, state], dim=1))
        keep, reset, new = joined.split(self.width, dim=1)
        keep = torch.sigmoid(keep)
        new = torch.tanh(new * torch.sigmoid(reset))
        return keep * state + (1 - keep) * new


class Readings(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell(8, 32)
        self.last = nn.Linear(32, 1)

    def forward(self, values):
        state = values.new_zeros(len(values), 32)
        for moment in range(values.shape[1]):
            state = self.cell(values[:, moment], state)
        return self.last(state)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = Readings()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for done in range(1, steps + 1):
        values = torch.randn(16, 48, 8)
        loss = nn.functional.mse_loss(model(values), values.mean((1, 2), keepdim=True)[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if done % 50 == 0:
            print("step", done, "loss", loss.item(), flush=True)


if __name__ == "__main__":
    main()
