"""Embed short sentences with a transformer encoder for a search index."""

import argparse
import random
import time

import torch
from torch import nn

LONGEST = 256


class Encoder(nn.Module):
    def __init__(self, vocabulary=8000, width=192, layers=3):
        super().__init__()
        self.token, self.place = (
            nn.Embedding(vocabulary, width, padding_idx=0),
            nn.Embedding(LONGEST, width),
        )
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        mask = ids == 0
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        x = self.layers(x, src_key_padding_mask=mask)
        weight = (~mask).unsqueeze(-1).float()
        return (x * weight).sum(1) / weight.sum(1)


def tokenize(sentences):
    ids = torch.zeros(len(sentences), max(map(len, sentences)), dtype=torch.long)
    for row, sentence in enumerate(sentences):
        ids[row, : len(sentence)] = torch.tensor(sentence)
    return ids


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    corpus = [[random.randint(1, 7999) for _ in range(random.randint(6, 40))] for _ in range(4000)]
    model = Encoder().eval()
    vectors, start = [], time.perf_counter()
    with torch.no_grad():
        for step in range(args.steps):
            first = step * 16 % 4000
            ids = tokenize(corpus[first : first + 16])
            vectors.append(model(ids))
            if step % 100 == 99:
                print(step + 1, vectors[-1].shape)
                vectors.clear()
    print(f"seconds {time.perf_counter() - start:.3f}")


if __name__ == "__main__":
    main()
