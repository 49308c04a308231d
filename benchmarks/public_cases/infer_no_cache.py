"""Continue prompts with a small decoder-only language model (greedy)."""

import argparse
import time

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x, cache=None):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if "k" in cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
            cache["k"], cache["v"] = k, v
        attended = scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, w))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, vocabulary=5000, width=256, layers=4, heads=4, longest=512):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids, caches=None, offset=0):
        x = self.token(ids) + self.place(torch.arange(offset, offset + ids.shape[1]))
        for i, block in enumerate(self.blocks):
            x = block(x, caches[i] if caches else None)
        return self.head(self.norm(x[:, -1]))


@torch.inference_mode()
def generate(model, ids, new):
    for _ in range(new):
        logits = model(ids)
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    return ids


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10000)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Decoder().eval()
    start = time.perf_counter()
    for request in range(args.steps):
        prompt = torch.randint(0, 5000, (1, 64))
        answer = generate(model, prompt, 48)
        if request % 20 == 19:
            print(request + 1, answer.shape[1])
    print(f"seconds {time.perf_counter() - start:.3f}")


if __name__ == "__main__":
    main()
