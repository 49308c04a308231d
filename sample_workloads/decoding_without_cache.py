"""Decoder that continues prompts token by token, and computes the whole sequence for each token.

Illness: each call gets all tokens so far; keys and values of earlier tokens are computed again.
Check expected: decoding-without-cache
Bottleneck expected: cpu; on a GPU: gpu
Fix expected: key-value-cache
"""

import argparse

import torch
from torch import nn

WORDS = 2000
WIDTH = 192
HEADS = 4
LAYERS = 3
LONGEST = 256
PROMPT = 48
NEW = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.merge = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, WIDTH) to the same, each token seeing those before it."""
        batch, length, _ = hidden.shape
        parts = self.project(self.norm(hidden)).view(batch, length, 3, HEADS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        hidden = hidden + self.merge(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return hidden + self.mix(hidden)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores of the token that comes next."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.words(tokens) + self.places(places)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden[:, -1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    model = Decoder().to(device).eval()
    tokens = torch.randint(0, WORDS, (1, PROMPT), device=device)
    with torch.inference_mode():
        for step in range(1, steps + 1):
            if tokens.shape[1] == PROMPT + NEW:
                tokens = torch.randint(0, WORDS, (1, PROMPT), device=device)
            scores = model(tokens)
            tokens = torch.cat([tokens, scores.argmax(-1, keepdim=True)], 1)
            if step % NEW == 0 or step == steps:
                print(f"step {step} score {scores.max().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
