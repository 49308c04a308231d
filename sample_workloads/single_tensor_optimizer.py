"""Forecast of hundreds of time series, each with coefficients of its own.

Illness: AdamW is told to update its many small parameters one by one (foreach=False), so most of
    the step goes into starting tiny optimizer operations.
Check expected: single-tensor-optimizer
Bottleneck expected: cpu
Fix expected: fused-optimizer
"""

import argparse

import torch
from torch import nn

SERIES = 400
LAGS = 48
BATCH = 16


class SeriesForecast(nn.Module):
    """One linear autoregression a series; the coefficients are parameters of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.coefficients = nn.ParameterList(
            nn.Parameter(torch.randn(LAGS) / LAGS) for _ in range(SERIES)
        )

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        """Map a history of shape (batch, SERIES, LAGS) to forecasts of shape (batch, SERIES)."""
        return torch.einsum("bsl,sl->bs", history, torch.stack(list(self.coefficients)))


def make_windows(series: torch.Tensor, generator: torch.Generator, device: str):
    """Cut one batch of histories and next values out of `series`, shape (time, SERIES)."""
    starts = torch.randint(0, len(series) - LAGS - 1, (BATCH, 1), generator=generator)
    windows = series[starts + torch.arange(LAGS + 1)].to(device)
    return windows[:, :LAGS].transpose(1, 2), windows[:, LAGS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    time = torch.arange(2000.0)[:, None]
    series = torch.sin(time * torch.rand(SERIES)) + 0.1 * torch.randn(2000, SERIES)
    generator = torch.Generator().manual_seed(1)
    model = SeriesForecast().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    for step in range(1, steps + 1):
        history, wanted = make_windows(series, generator, device)
        loss = nn.functional.mse_loss(model(history), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps:
            print(f"step {step} loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
