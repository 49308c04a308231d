"""A plain loop, as torch's own tutorial has it."""

import torch
from framework_data import Images, counted, small_model
from torch import nn
from torch.utils.data import DataLoader

loader = DataLoader(Images(), batch_size=16, shuffle=True)
model = small_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss_function = nn.CrossEntropyLoss()
steps = 0
for _ in range(2):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = loss_function(model(images), labels)
        loss.backward()
        optimizer.step()
        steps += 1
counted("torch", steps)
