"""A small image classifier; each image is augmented by the data set."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, count):
        self.images = np.random.default_rng(0).integers(0, 255, (count, 96, 96, 3), dtype=np.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index].astype(np.float32) / 255
        for _ in range(6):  # a blur
            image = (np.roll(image, 1, 0) + image + np.roll(image, -1, 0)) / 3
            image = (np.roll(image, 1, 1) + image + np.roll(image, -1, 1)) / 3
        image = (image - image.mean((0, 1))) / (image.std((0, 1)) + 1e-3)
        return torch.from_numpy(image[:64, :64].transpose(2, 0, 1).copy()), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    loader = DataLoader(Images(1024), batch_size=32, shuffle=True, drop_last=True)
    layers = [nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    done = 0
    while done < steps:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
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
