"""The job of examples/cookbook/digits_augmented.py with Keras."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32").reshape(-1, 8, 8, 1)


class Shifted(keras.utils.PyDataset):
    """Move each image by up to one pixel, another way each time it is read."""

    order = np.arange(1500)

    def __len__(self):
        return 30

    def __getitem__(self, batch):
        images, chosen = [], self.order[batch * 50 : batch * 50 + 50]
        for image in np.pad(x[chosen], [(0, 0), (1, 1), (1, 1), (0, 0)]):
            top, left = np.random.randint(0, 3, 2)
            images.append(image[top : top + 8, left : left + 8])
        return np.stack(images), y[chosen]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
val = (x[1500:], y[1500:])
model.fit(
    Shifted(workers=2, use_multiprocessing=True),
    epochs=6,
    validation_data=val,
)
print(f"accuracy: {model.evaluate(*val)[1]:.3f}")
