"""A model validated with Lightning's Trainer.validate: one call, told by its batches."""

import lightning
import torch
from framework_data import Images, counted, small_model
from torch import nn
from torch.utils.data import DataLoader


class LitModel(lightning.LightningModule):
    """Classifies images, and counts the batches that it validates with."""

    def __init__(self):
        super().__init__()
        self.net = small_model()
        self.batches = 0

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(images), labels))
        self.batches += 1


torch.manual_seed(0)
model = LitModel()
trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
trainer.validate(model, DataLoader(Images(), batch_size=8))
counted("lightning", model.batches)
