"""Train with Keras on torch, keep the model of the second epoch, and print the last weights."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from common import BATCH, EPOCHS, EPSILON, KEPT, finish, network, pixels

kind, folder = sys.argv[1:]
weights = [one.detach().numpy() for one in network().parameters()]
model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
)
model.set_weights([weights[0].T, weights[1], weights[2].T, weights[3]])
if kind == "adamw":
    # Keras adds epsilon at another place of the formula: a small one makes no difference.
    optimizer = keras.optimizers.AdamW(3e-3, weight_decay=0.01, epsilon=EPSILON)
else:
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = (one.numpy() for one in pixels())
model.fit(x, y, BATCH, epochs=KEPT, shuffle=False, verbose=0)
model.save(f"{folder}/kept.keras")
model.save_weights(f"{folder}/kept.weights.h5")
model.fit(x, y, BATCH, epochs=EPOCHS - KEPT, shuffle=False, verbose=0)
trained = network()
for own, one in zip(trained.parameters(), model.get_weights(), strict=True):
    own.data = torch.as_tensor(one.T)
finish(trained, f"{folder}/kept.keras")
