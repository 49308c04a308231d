"""Photo classifier that decompresses and normalises its images in the training process.

Illness: every image is decoded with zlib and numpy in Dataset.__getitem__, and the DataLoader has
    no workers, so the model waits while one core decodes.
Check expected: loader-cpu-bound
Bottleneck expected: data_loader
Fix expected: loader-workers, persistent-workers, decoded-cache
"""

import argparse
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 160
CROP = 64
CLASSES = 10
ARCHIVES = 64  # made once; decoding them again and again costs what decoding others would


class CompressedPhotos(Dataset):
    """Made-up photos, kept compressed as they would be in an archive."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self.count = count
        self.labels = rng.integers(0, CLASSES, ARCHIVES)
        self.packed = []
        for label in self.labels:
            noise = rng.integers(0, 24, (SIDE, SIDE, 3), dtype=np.uint8)
            photo = noise + np.uint8(20 * label)
            self.packed.append(zlib.compress(photo.tobytes(), level=6))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        flat = np.frombuffer(zlib.decompress(self.packed[index % ARCHIVES]), dtype=np.uint8)
        photo = flat.reshape(SIDE, SIDE, 3).astype(np.float32) / 255.0
        photo = (photo - photo.mean(axis=(0, 1))) / (photo.std(axis=(0, 1)) + 1e-3) + photo.mean()
        top, left = np.random.default_rng(index).integers(0, SIDE - CROP, 2)
        crop = photo[top : top + CROP, left : left + CROP]
        return torch.from_numpy(np.ascontiguousarray(crop.transpose(2, 0, 1))), int(
            self.labels[index % ARCHIVES]
        )


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, CLASSES),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    loader = DataLoader(CompressedPhotos(960), batch_size=16, shuffle=True, drop_last=True)
    model = build_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()

    step = 0
    while step < steps:
        for photos, labels in loader:
            loss = loss_function(model(photos.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0 or step == steps:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == steps:
                break


if __name__ == "__main__":
    main()
