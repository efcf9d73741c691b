"""The script of docs/from-keras.md, with Keras on torch; needs its own environment."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")

keras.utils.set_random_seed(0)
network = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, kernel_initializer="zeros")])
network.compile(
    optimizer=keras.optimizers.SGD(learning_rate=0.5, momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = network.fit(
    x[:1500],
    y[:1500],
    batch_size=50,
    epochs=5,
    shuffle=False,
    validation_data=(x[1500:], y[1500:]),
    callbacks=[keras.callbacks.EarlyStopping("val_loss", patience=3)],
    verbose=0,
)
val_loss, val_accuracy = network.evaluate(x[1500:], y[1500:], verbose=0)

model = {"weight": network.get_weights()[0].T, "bias": network.get_weights()[1]}
