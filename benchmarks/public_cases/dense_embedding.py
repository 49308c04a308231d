"""Skip-gram style word vectors with a big vocabulary."""

import argparse
import time

import torch
from torch import nn


class WordVectors(nn.Module):
    def __init__(self, words, size):
        super().__init__()
        self.centre = nn.Embedding(words, size)
        self.context = nn.Embedding(words, size)

    def forward(self, centre, context):
        return (self.centre(centre)[:, None] * self.context(context)).sum(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    args = parser.parse_args()
    torch.manual_seed(0)
    words = 200_000
    model = WordVectors(words, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    start = time.perf_counter()
    for step in range(args.steps):
        centre = torch.randint(0, words, (512,))
        context = torch.randint(0, words, (512, 6))
        labels = torch.zeros(512, 6)
        labels[:, 0] = 1
        loss = nn.functional.binary_cross_entropy_with_logits(model(centre, context), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 199:
            print(step + 1, float(loss))
    print(f"seconds {time.perf_counter() - start:.3f}")


if __name__ == "__main__":
    main()
