"""The job of examples/cookbook/streaming.py with Keras."""

import gzip
import json
from itertools import islice
from pathlib import Path

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

Path("shards").mkdir(exist_ok=True)
x, y = load_digits(return_X_y=True)
for shard in range(6):
    with gzip.open(f"shards/{shard}.jsonl.gz", "wt") as file:
        for image, label in zip(x[shard:1500:6], y[shard:1500:6], strict=True):
            print(json.dumps([[*image], int(label)]), file=file)


def lines():
    """Yield the lines of all files, again and again."""
    while True:
        for path in sorted(Path("shards").iterdir()):
            with gzip.open(path, "rt") as file:
                for line in file:
                    image, label = json.loads(line)
                    yield np.array(image, "float32") / 16, label


def batches():
    stream = lines()
    while batch := list(islice(stream, 50)):
        images, labels = zip(*batch, strict=True)
        yield np.stack(images), np.array(labels)


keras.utils.set_random_seed(0)
model = keras.Sequential(
    [keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
val = (x[1500:] / 16, y[1500:])
model.fit(batches(), steps_per_epoch=50, epochs=4, validation_data=val)
print(f"accuracy: {model.evaluate(*val)[1]:.3f}")
