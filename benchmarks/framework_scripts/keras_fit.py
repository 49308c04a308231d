"""A Keras model on the torch backend, fed by a torch DataLoader, as Keras's guide has it."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
from framework_data import Images, counted
from torch.utils.data import DataLoader

model = keras.Sequential(
    [
        keras.Input((3, 32, 32)),
        keras.layers.Conv2D(16, 3, activation="relu", data_format="channels_first"),
        keras.layers.MaxPooling2D(2, data_format="channels_first"),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.AdamW(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
model.fit(DataLoader(Images(), batch_size=16, shuffle=True), epochs=2, verbose=0)
counted("keras", int(model.optimizer.iterations))
