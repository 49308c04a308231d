"""Little training loops whose losses are the same, rounded, reseeded or really changed."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional

CLASSES = 10
SIZES = {"mlp": (512, 32), "cnn": (512, 16), "lm": (512, 8)}  # samples in the data set, batch


def _model(kind: str) -> nn.Module:
    if kind == "mlp":
        return nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, CLASSES))
    if kind == "cnn":
        return nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)),
        )
    return nn.Sequential(
        nn.Embedding(32, 32),
        nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True),
        nn.Linear(32, 32),
    )


@functools.cache
def _data(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A data set that can be learned; the same in every run."""
    generator = torch.Generator().manual_seed(99)
    count = SIZES[kind][0]
    if kind == "lm":
        start = torch.randint(0, 32, (count, 1), generator=generator)
        stride = torch.randint(1, 4, (count, 1), generator=generator)
        tokens = (start + stride * torch.arange(17)) % 32
        return tokens[:, :-1], tokens[:, 1:]
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    shape = (48,) if kind == "mlp" else (3, 12, 12)
    centres = torch.randn(CLASSES, *shape, generator=generator)
    noise = torch.randn(count, *shape, generator=generator)
    return 0.7 * centres[labels] + noise, labels


def _optimizer(kind: str, model: nn.Module, lr: float, fused: bool) -> torch.optim.Optimizer:
    if kind == "mlp":
        return torch.optim.SGD(model.parameters(), lr=0.1 * lr, momentum=0.9, fused=fused)
    return torch.optim.AdamW(model.parameters(), lr=2e-3 * lr, fused=fused)


def _order(kind: str, data: str, steps: int) -> list[torch.Tensor]:
    count, batch = SIZES[kind]
    batches: list[torch.Tensor] = []
    while len(batches) < steps:
        batches += list(torch.randperm(count).split(batch))
    if data == "each-twice":  # two workers that do not shard
        batches = [b for b in batches for _ in range(2)]
    if data == "first-four":
        batches = [batches[i % 4] for i in range(steps)]
    return batches[:steps]


@functools.cache
def losses(
    kind: str,
    *,
    seed: int = 0,
    steps: int = 60,
    lr: float = 1.0,
    bf16: bool = False,
    double_sum: bool = False,
    fused: bool = False,
    channels_last: bool = False,
    augment: int | None = None,
    data: str = "",
    shuffled_labels: bool = False,
    every: int = 1,
    evaluate: bool = False,
    keep_gradients: bool = False,
    update_noise: float = 0.0,
) -> list[float]:
    """Losses of `steps` iterations.

    Args:
        kind: "mlp" (SGD, dropout), "cnn" (AdamW, batch norm), "lm" (AdamW, attention).
        seed: of weights, order and dropout.
        double_sum: forward in another order of summation (the batch turned round).
        augment: seed of random augmentation outside the main generator, None: no augmentation.
        data: "each-twice", "first-four": repeated samples.
        every: the optimizer steps only each n-th iteration.
        evaluate: the model forgets to leave evaluation mode.
        update_noise: relative error of every gradient, like lower precision.
    """
    torch.manual_seed(seed)
    inputs, labels = _data(kind)
    if shuffled_labels:
        labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    model = _model(kind)
    model.train(not evaluate)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = _optimizer(kind, model, lr, fused)
    noise = torch.Generator().manual_seed(augment or 0)
    found = []
    for step, rows in enumerate(_order(kind, data, steps)):
        if double_sum:
            rows = rows.flip(0)
        x, y = inputs[rows], labels[rows]
        if augment is not None:
            x = x + 0.5 * torch.randn(x.shape, generator=noise)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            out = model(x)
        loss = functional.cross_entropy(out.float().flatten(0, -2), y.flatten())
        if not keep_gradients:
            optimizer.zero_grad()
        loss.backward()
        if update_noise:
            for p in model.parameters():
                p.grad.mul_(1 + update_noise * torch.randn(p.shape, generator=noise))
        if step % every == every - 1:
            optimizer.step()
        found.append(loss.item())
    return found
