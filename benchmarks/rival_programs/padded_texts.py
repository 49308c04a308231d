"""A classifier of texts of 10 to 60 tokens."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LONGEST = 256


class Texts(Dataset):
    def __init__(self, count):
        lengths = torch.randint(10, 60, (count,)).tolist()
        self.texts = [torch.randint(1, 1000, (length,)) for length in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], index % 2


def together(samples):
    texts = torch.zeros(len(samples), LONGEST, dtype=torch.long)
    for row, (text, _) in enumerate(samples):
        texts[row, : len(text)] = text
    return texts, torch.tensor([label for _, label in samples])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(1000, 64, padding_idx=0)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(64, 2)

    def forward(self, texts):
        padding = texts == 0
        states = self.body(self.tokens(texts), src_key_padding_mask=padding)
        states = states.masked_fill(padding[..., None], 0.0)
        return self.last(states.sum(1) / (~padding).sum(1, keepdim=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    loader = DataLoader(Texts(2048), batch_size=16, shuffle=True, collate_fn=together)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    done = 0
    while done < steps:
        for texts, labels in loader:
            loss = nn.functional.cross_entropy(model(texts), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % 50 == 0:
                print("step", done, "loss", loss.item(), flush=True)
            if done == steps:
                break


if __name__ == "__main__":
    main()
