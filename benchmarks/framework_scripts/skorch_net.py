"""A skorch classifier, as its quick start has it."""

from framework_data import Images, counted, small_model
from skorch import NeuralNetClassifier
from torch import nn

net = NeuralNetClassifier(
    small_model(),
    criterion=nn.CrossEntropyLoss,
    max_epochs=2,
    lr=0.01,
    batch_size=16,
    iterator_train__shuffle=True,
    train_split=None,
    verbose=0,
)
net.fit(Images(), y=None)
counted("skorch", sum(len(epoch["batches"]) for epoch in net.history))
