"""Samples predicted with Lightning's Trainer.predict: one call, told by its batches."""

import lightning
import torch
from framework_data import Images, counted, small_model
from torch.utils.data import DataLoader


class LitModel(lightning.LightningModule):
    """Classifies images."""

    def __init__(self):
        super().__init__()
        self.net = small_model()

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0]).argmax(1)


torch.manual_seed(0)
trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
predicted = trainer.predict(LitModel(), DataLoader(Images(), batch_size=8))
counted("lightning", len(predicted))
