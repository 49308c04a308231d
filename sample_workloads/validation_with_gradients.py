"""Denoiser whose frequent validation keeps the graph of every batch it looks at.

Illness: validation runs without torch.no_grad() and adds up losses that still hold their graphs, so
    it stores activations for gradients that nobody asks for.
Check expected: evaluation-with-gradients
Bottleneck expected: cpu; on a GPU: gpu
Fix expected: no-grad-evaluation
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 256
POINTS = 2048
CHANNELS = 24
STEPS_AN_EPOCH = 5


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spread = nn.Conv1d(1, CHANNELS, kernel_size=5, padding=2)
        self.scale = nn.Parameter(torch.ones(CHANNELS, 1))
        self.gather = nn.Conv1d(CHANNELS, 1, kernel_size=5, padding=2)

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        """Map signals of shape (batch, 1, POINTS) to signals of the same shape."""
        hidden = self.spread(noisy)
        for _ in range(3):
            hidden = torch.tanh(hidden * self.scale) + 0.5 * torch.sigmoid(hidden) * hidden
        return noisy - self.gather(hidden)


def make_signals(count: int) -> TensorDataset:
    phase = torch.linspace(0, 40, POINTS) * (0.5 + torch.rand(count, 1, 1))
    clean = torch.sin(phase)
    return TensorDataset(clean + 0.3 * torch.randn(count, 1, POINTS), clean)


def validate(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    total = torch.zeros((), device=device)
    for noisy, clean in loader:
        total = total + nn.functional.mse_loss(model(noisy.to(device)), clean.to(device))
    model.train()
    return total.item() / len(loader)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    training = DataLoader(make_signals(8 * STEPS_AN_EPOCH), batch_size=8, shuffle=True)
    validation = DataLoader(make_signals(SAMPLES), batch_size=8)
    model = Denoiser().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    step = 0
    while step < steps:
        for noisy, clean in training:
            loss = nn.functional.mse_loss(model(noisy.to(device)), clean.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == steps:
                break
        print(f"step {step} validation {validate(model, validation, device):.4f}", flush=True)


if __name__ == "__main__":
    main()
