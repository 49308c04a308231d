"""Small recurrent model with a debugging switch that somebody forgot to turn off.

Illness: torch.autograd.set_detect_anomaly(True) is on: every operation records a Python traceback
    and every gradient is searched for NaN.
Check expected: debug-left-on
Bottleneck expected: cpu
Fix expected: debug-off
"""

import argparse

import torch
from torch import nn

LENGTH = 24
FEATURES = 16
HIDDEN = 64
BATCH = 64

# Left over from the hunt for a NaN.
torch.autograd.set_detect_anomaly(True)


class GatedRecurrence(nn.Module):
    """A recurrence with one gate, written out step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(FEATURES + HIDDEN, 2 * HIDDEN)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """Map a sequence of shape (batch, LENGTH, FEATURES) to one value a row."""
        state = sequence.new_zeros(len(sequence), HIDDEN)
        for frame in sequence.unbind(dim=1):
            gate, new = self.mix(torch.cat([frame, state], dim=1)).chunk(2, dim=1)
            gate = torch.sigmoid(gate)
            state = gate * state + (1.0 - gate) * torch.tanh(new)
        return self.head(state).squeeze(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    sequences = torch.randn(1024, LENGTH, FEATURES)
    wanted = sequences[:, -6:].mean(dim=(1, 2)) * 10
    sequences, wanted = sequences.to(device), wanted.to(device)
    model = GatedRecurrence().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for step in range(1, steps + 1):
        rows = slice(BATCH * (step % 16), BATCH * (step % 16 + 1))
        loss = nn.functional.mse_loss(model(sequences[rows]), wanted[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
