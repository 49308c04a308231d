"""A fraud model that reports its area under the ROC curve while it trains."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class RunningAUC:
    def __init__(self):
        self.scores, self.targets = [], []

    def update(self, scores, targets):
        self.scores.append(scores.detach())
        self.targets.append(targets)

    def compute(self):
        order = torch.cat(self.scores).argsort(descending=True)
        hits = torch.cat(self.targets)[order]
        true_positives, false_positives = hits.cumsum(0), (1 - hits).cumsum(0)
        return torch.trapezoid(true_positives, false_positives) / (
            true_positives[-1] * false_positives[-1]
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    args = parser.parse_args()
    torch.manual_seed(0)
    x, y = torch.randn(400_000, 64), (torch.rand(400_000) < 0.1).float()
    loader = DataLoader(TensorDataset(x, y), batch_size=512, shuffle=True)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    done, start = 0, time.perf_counter()
    while done < args.steps:
        metric = RunningAUC()
        for features, labels in loader:
            optimizer.zero_grad()
            scores = model(features).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(scores, labels)
            loss.backward()
            optimizer.step()
            metric.update(scores, labels)
            done += 1
            if done % 100 == 0:
                print(done, float(loss), float(metric.compute()))
            if done >= args.steps:
                break
    print(f"seconds {time.perf_counter() - start:.3f}")


if __name__ == "__main__":
    main()
