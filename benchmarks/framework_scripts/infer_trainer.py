"""Samples predicted with Trainer.predict of transformers: one call, told by its batches."""

import torch
from framework_data import Images, counted, small_model
from torch import nn
from transformers import Trainer, TrainingArguments


class Wrapped(nn.Module):
    """A network as transformers calls it."""

    def __init__(self):
        super().__init__()
        self.net = small_model()

    def forward(self, pixels):
        return {"logits": self.net(pixels)}


class Rows(Images):
    """The same images, by name."""

    def __getitem__(self, index):
        return {"pixels": super().__getitem__(index)[0]}


torch.manual_seed(0)
arguments = TrainingArguments(
    output_dir="out", per_device_eval_batch_size=8, report_to="none", use_cpu=True
)
Trainer(model=Wrapped(), args=arguments).predict(Rows())
counted("transformers", 30)
