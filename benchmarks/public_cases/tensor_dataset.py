"""Click prediction on a table that is in memory already."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    args = parser.parse_args()
    torch.manual_seed(0)
    table = TensorDataset(torch.randn(300_000, 24), torch.randint(0, 2, (300_000,)).float())
    loader = DataLoader(table, batch_size=2048, shuffle=True)
    model = nn.Sequential(
        nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    done, start = 0, time.perf_counter()
    while done < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
            done += 1
            if done % 200 == 0:
                print(done, float(loss))
            if done >= args.steps:
                break
    print(f"seconds {time.perf_counter() - start:.3f}")


if __name__ == "__main__":
    main()
