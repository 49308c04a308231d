"""DeepSpeed's engine on the CPU, as its getting-started page has it."""

import deepspeed
import torch
from framework_data import Images, counted, small_model
from torch import nn

model = small_model()
engine, _, loader, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    training_data=Images(),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    },
)
for _ in range(2):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(engine(images), labels)
        engine.backward(loss)
        engine.step()
torch.distributed.destroy_process_group()
counted("deepspeed", engine.global_steps)
