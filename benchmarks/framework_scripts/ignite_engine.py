"""A trainer and an evaluator of Ignite, as its quick start has them."""

import torch
from framework_data import Images, counted, small_model
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from torch import nn
from torch.utils.data import DataLoader

train_loader = DataLoader(Images(), batch_size=16, shuffle=True)
val_loader = DataLoader(Images(32), batch_size=16)
model = small_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
evaluator = create_supervised_evaluator(model, metrics={"accuracy": Accuracy()})


@trainer.on(Events.EPOCH_COMPLETED)
def validate(engine):
    """Measure the accuracy after each epoch."""
    evaluator.run(val_loader)


trainer.run(train_loader, max_epochs=2)
counted("pytorch-ignite", trainer.state.iteration)
