"""A loop with Accelerate, as its quick tour has it."""

import torch
from accelerate import Accelerator
from framework_data import Images, counted, small_model
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = small_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train_loader = DataLoader(Images(), batch_size=8, shuffle=True)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100)
model, optimizer, train_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, scheduler
)
loss_function = nn.CrossEntropyLoss()
steps = 0
for _ in range(2):
    for images, labels in train_loader:
        with accelerator.accumulate(model):
            loss = loss_function(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        steps += accelerator.sync_gradients
counted("accelerate", steps)
