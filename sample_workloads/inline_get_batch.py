"""Character model that cuts its batches out of a memory map, in the training loop itself.

Illness: there is no DataLoader: get_batch() reads windows from a numpy.memmap and corrupts them
    with numpy between two steps, while the model waits.
Check expected: inline-batch-preparation
Bottleneck expected: data_loader
Fix expected: none
    (nothing that can be applied to a running program; offered: move get_batch() into a Dataset and
    let the workers of a DataLoader call it)
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

VOCABULARY = 64
BLOCK = 96
BATCH = 32


def write_tokens(path: Path, count: int = 2_000_000) -> None:
    """Write `count` uint16 tokens: runs of neighbouring values, so that it can learn."""
    rng = np.random.default_rng(0)
    tokens = np.cumsum(rng.integers(-2, 3, count)) % VOCABULARY
    tokens.astype(np.uint16).tofile(path)


def get_batch(path: Path, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy windows and the clean next tokens, both int64 of shape (BATCH, BLOCK)."""
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    inputs, targets = [], []
    for start in rng.integers(0, len(tokens) - BLOCK - 1, BATCH):
        window = tokens[start : start + BLOCK + 1].astype(np.int64)
        # Tokens swap places with near neighbours, weighted by how often they occur around here.
        nearby = tokens[max(0, start - 50_000) : start + 50_000]
        frequency = np.bincount(nearby, minlength=VOCABULARY) / len(nearby)
        place = np.argsort(np.arange(BLOCK) + rng.uniform(0, 1.5, BLOCK) * frequency[window[:-1]])
        noisy = window[:-1][place]
        replaced = rng.random(BLOCK) < 0.05
        noisy[replaced] = rng.choice(VOCABULARY, replaced.sum(), p=frequency)
        inputs.append(torch.from_numpy(noisy))
        targets.append(torch.from_numpy(window[1:]))
    return torch.stack(inputs), torch.stack(targets)


class NextCharacter(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.mix = nn.Conv1d(width, 2 * width, kernel_size=4, padding=3)
        self.head = nn.Linear(2 * width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.mix(self.embed(tokens).transpose(1, 2))[..., : tokens.shape[1]]
        return self.head(torch.relu(hidden).transpose(1, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = NextCharacter().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with tempfile.TemporaryDirectory(prefix="inline_get_batch_") as folder:
        path = Path(folder) / "train.bin"
        write_tokens(path)
        for step in range(1, steps + 1):
            inputs, targets = get_batch(path, rng)
            logits = model(inputs.to(device))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0 or step == steps:
                print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
