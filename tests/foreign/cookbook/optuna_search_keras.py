"""The job of examples/cookbook/optuna_search.py with Keras."""

import keras
import optuna
from keras import layers
from optuna_integration import KerasPruningCallback
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")


def objective(trial):
    keras.utils.set_random_seed(0)
    width = trial.suggest_int("width", 8, 64)
    model = keras.Sequential(
        [keras.Input((64,)), layers.Dense(width, activation="relu"), layers.Dense(10)]
    )
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(lr), loss, metrics=["accuracy"])
    prune = KerasPruningCallback(trial, "val_accuracy")
    val = (x[1500:], y[1500:])
    history = model.fit(
        x[:1500], y[:1500], 50, epochs=6, validation_data=val, callbacks=[prune], verbose=0
    )
    return history.history["val_accuracy"][-1]


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=8)
print(f"best accuracy: {study.best_value:.3f}")
