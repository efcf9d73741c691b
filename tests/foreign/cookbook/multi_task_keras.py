"""The job of examples/cookbook/multi_task.py with Keras."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
targets = {"digit": y, "parity": y % 2}
noisy = x[1500:] + 0.3 * np.random.randn(297, 64).astype("float32")
val_targets = {head: labels[1500:] for head, labels in targets.items()}


class ValidateOn(keras.callbacks.Callback):
    """Validate on more data: `fit` takes one set."""

    def __init__(self, name, inputs, targets):
        super().__init__()
        self.name, self.inputs, self.targets = name, inputs, targets

    def on_epoch_end(self, epoch, logs=None):
        scores = self.model.evaluate(self.inputs, self.targets, 99, return_dict=True, verbose=0)
        logs.update({f"val_{self.name}_{key}": score for key, score in scores.items()})


pixels = keras.Input((64,))
features = layers.Dense(64, activation="relu")(pixels)
heads = {
    "digit": layers.Dense(10, name="digit")(features),
    "parity": layers.Dense(2, name="parity")(features),
}
model = keras.Model(pixels, heads)
losses = {h: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for h in heads}
model.compile(keras.optimizers.Adam(3e-3), losses, metrics={head: ["accuracy"] for head in heads})
model.fit(
    x[:1500],
    {head: labels[:1500] for head, labels in targets.items()},
    batch_size=50,
    epochs=8,
    validation_data=(x[1500:], val_targets),
    callbacks=[ValidateOn("noisy", noisy, val_targets)],
)
scores = model.evaluate(noisy, val_targets, 99, return_dict=True)
print(f"accuracy on noisy images: {scores['digit_accuracy']:.3f}")
