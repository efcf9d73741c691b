"""The job of examples/cookbook/callbacks.py with Keras."""

import keras
import torch
from keras import callbacks, layers
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
val = (x[1500:], y[1500:])


class WithGradNorm(keras.Sequential):
    """Log the norm of the gradients, which no callback sees."""

    def train_step(self, data):
        logs = super().train_step(data)
        gradients = [v.value.grad for v in self.trainable_weights if v.value.grad is not None]
        return {**logs, "grad_norm": torch.nn.utils.get_total_norm(gradients)}


class LogRate(callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["lr"] = float(self.model.optimizer.learning_rate)


class Unfreeze(callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        for weight in self.model.layers[0].weights:
            weight.value.requires_grad_(epoch >= 2)


keras.utils.set_random_seed(0)
model = WithGradNorm([keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.AdamW(0.01), loss, metrics=["accuracy"])
model.fit(
    x[:1500],
    y[:1500],
    50,
    epochs=30,
    validation_data=val,
    callbacks=[
        callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.9 if epoch else lr),
        LogRate(),
        Unfreeze(),
        callbacks.ModelCheckpoint("best.keras", "val_loss", save_best_only=True),
        callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        callbacks.CSVLogger("log.csv"),
    ],
)
print(f"accuracy: {model.evaluate(*val)[1]:.3f}")
