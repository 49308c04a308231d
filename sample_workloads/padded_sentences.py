"""Encoder that embeds short sentences, each filled up to the longest that it could take.

Illness: sentences of 6 to 40 tokens are padded to 256, so that most of what the model computes is
    padding.
Check expected: padded-tokens
Bottleneck expected: cpu; on a GPU: gpu
Fix expected: pad-to-longest
"""

import argparse
import random

import torch
from torch import nn

LONGEST = 256
WORDS = 4000
WIDTH = 128
BATCH = 16


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.places = nn.Embedding(LONGEST, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a vector for each row of tokens, in which 0 is padding."""
        padding = tokens == 0
        hidden = self.words(tokens)
        hidden = hidden + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        hidden = self.layers(hidden, src_key_padding_mask=padding)
        weight = (~padding).unsqueeze(-1).float()
        return (hidden * weight).sum(1) / weight.sum(1)


def make_corpus(count: int) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randint(1, WORDS - 1) for _ in range(draw.randint(6, 40))] for _ in range(count)]


def tokenise(sentences: list[list[int]]) -> torch.Tensor:
    tokens = torch.zeros(len(sentences), LONGEST, dtype=torch.long)
    for row, sentence in enumerate(sentences):
        tokens[row, : len(sentence)] = torch.tensor(sentence)
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    corpus = make_corpus(64 * BATCH)
    model = Encoder().to(device).eval()
    with torch.inference_mode():
        for step in range(1, steps + 1):
            first = step * BATCH % len(corpus)
            tokens = tokenise(corpus[first : first + BATCH]).to(device)
            vectors = model(tokens)
            if step % 20 == 0 or step == steps:
                print(f"step {step} length {vectors.norm(dim=1).mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
