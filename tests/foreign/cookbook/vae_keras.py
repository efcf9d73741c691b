"""The job of examples/cookbook/vae.py with Keras."""

import keras
from keras import layers, ops
from sklearn.datasets import load_digits

x = (load_digits().data / 16).astype("float32")


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(128, activation="relu"), layers.Dense(16)])
        self.decoder = keras.Sequential([layers.Dense(128, activation="relu"), layers.Dense(64)])
        self.seeds = keras.random.SeedGenerator(0)
        self.parts = [keras.metrics.Mean("reconstruction"), keras.metrics.Mean("kl")]

    @property
    def metrics(self):
        return [*super().metrics, *self.parts]

    def call(self, x):
        mean, log_var = ops.split(self.encoder(x), 2, axis=1)
        z = mean + keras.random.normal(ops.shape(mean), seed=self.seeds) * ops.exp(log_var / 2)
        reconstruction = ops.binary_crossentropy(x, self.decoder(z), from_logits=True)
        kl = (mean**2 + ops.exp(log_var) - 1 - log_var) / 2
        for part, loss in zip(self.parts, (reconstruction, kl), strict=True):
            self.add_loss(ops.mean(ops.sum(loss, 1)))
            part.update_state(ops.sum(loss, 1))
        return z


keras.utils.set_random_seed(0)
model = VAE()
model.compile(keras.optimizers.Adam(2e-3))
model.fit(
    x[:1500],
    batch_size=50,
    epochs=20,
    validation_data=(x[1500:], None),
)
print(f"negative ELBO: {model.evaluate(x[1500:], return_dict=True)['loss']:.1f}")
