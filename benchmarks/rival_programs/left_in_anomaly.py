"""An autoencoder; someone once looked for a NaN."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(True)
    loader = DataLoader(TensorDataset(torch.randn(4096, 64)), batch_size=32, shuffle=True)
    layers = [
        layer for _ in range(16) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())
    ]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    done = 0
    while done < steps:
        for (rows,) in loader:
            loss = nn.functional.mse_loss(model(rows), rows)
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
