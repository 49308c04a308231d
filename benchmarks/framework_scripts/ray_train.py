"""Two workers of Ray Train, as its guide for PyTorch has them."""

import ray.train.torch
import torch
from framework_data import Images, counted, small_model
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn
from torch.utils.data import DataLoader


def train_loop(config):
    """Train in one worker."""
    model = ray.train.torch.prepare_model(small_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = ray.train.torch.prepare_data_loader(DataLoader(Images(), batch_size=8, shuffle=True))
    steps = 0
    for _ in range(2):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            steps += 1
        ray.train.report({"loss": loss.item(), "steps": steps})
    if ray.train.get_context().get_world_rank() == 0:
        counted("ray", steps)


TorchTrainer(
    train_loop,
    scaling_config=ScalingConfig(num_workers=2),
    torch_config=TorchConfig(backend="gloo"),
).fit()
