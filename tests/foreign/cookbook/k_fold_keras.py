"""The job of examples/cookbook/k_fold.py with Keras."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_wine
from sklearn.model_selection import KFold

x, y = load_wine(return_X_y=True)
x = ((x - x.mean(0)) / x.std(0)).astype("float32")
accuracies = []
for fold, (train, val) in enumerate(KFold(5, shuffle=True, random_state=0).split(x)):
    keras.utils.set_random_seed(fold)
    model = keras.Sequential(
        [keras.Input((13,)), layers.Dense(32, activation="relu"), layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    held_out = (x[val], y[val])
    model.fit(x[train], y[train], 16, epochs=10, validation_data=held_out)
    accuracies.append(model.evaluate(*held_out)[1])
print(f"accuracy: {np.mean(accuracies):.3f} ± {np.std(accuracies, ddof=1):.3f}")
