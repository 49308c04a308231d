"""A LightningModule and its Trainer, as Lightning's introduction has them."""

import lightning
import torch
from framework_data import Images, counted, small_model
from torch import nn
from torch.utils.data import DataLoader


class LitModel(lightning.LightningModule):
    """Classifies images."""

    def __init__(self):
        super().__init__()
        self.net = small_model()

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(images), labels))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", enable_progress_bar=False)
train_loader = DataLoader(Images(), batch_size=16, shuffle=True)
trainer.fit(LitModel(), train_loader, DataLoader(Images(32), batch_size=16))
counted("lightning", trainer.global_step)
