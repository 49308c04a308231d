"""Train a small conv net on images kept in one zip archive."""

import argparse
import io
import os
import time
import zipfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ARCHIVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiles.zip")


def make_archive(path, n=1200):
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path + ".part", "w", zipfile.ZIP_STORED) as z:
        for i in range(n):
            buf = io.BytesIO()
            np.save(buf, rng.integers(0, 255, (3, 32, 32), dtype=np.uint8))
            z.writestr(f"tiles/{i:06d}.npy", buf.getvalue())
    os.replace(path + ".part", path)


class ZipTiles(Dataset):
    def __init__(self, path):
        self.path = path
        with zipfile.ZipFile(path) as z:
            self.names = sorted(z.namelist())
        self.archive = zipfile.ZipFile(path)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        raw = self.archive.read(self.names[index])
        image = np.load(io.BytesIO(raw))
        return torch.from_numpy(image).float() / 255, index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    args = parser.parse_args()
    if not os.path.exists(ARCHIVE):
        make_archive(ARCHIVE)
    torch.manual_seed(0)
    loader = DataLoader(ZipTiles(ARCHIVE), batch_size=16, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    done, start = 0, time.perf_counter()
    while done < args.steps:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % 200 == 0:
                print(done, float(loss))
            if done >= args.steps:
                break
    print(f"seconds {time.perf_counter() - start:.3f}")


if __name__ == "__main__":
    main()
