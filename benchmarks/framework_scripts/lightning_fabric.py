"""A loop with Lightning Fabric, as its documentation has it."""

import lightning
import torch
from framework_data import Images, counted, small_model
from torch import nn
from torch.utils.data import DataLoader

fabric = lightning.Fabric(accelerator="cpu", devices=1)
fabric.launch()
model = small_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(DataLoader(Images(), batch_size=16, shuffle=True))
steps = 0
for _ in range(2):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        fabric.backward(loss)
        optimizer.step()
        steps += 1
counted("lightning", steps)
