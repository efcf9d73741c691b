"""Train a variational autoencoder: a model that returns its own losses."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from stoker import Engine, Trainer, data, seed_all

x = torch.tensor(load_digits().data / 16, dtype=torch.float32)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        reconstruction = cross_entropy(self.decoder(z), x, reduction="none")
        kl = (mean**2 + log_var.exp() - 1 - log_var) / 2
        return {"reconstruction": reconstruction.sum(1).mean(), "kl": kl.sum(1).mean()}


seed_all(0)
model = VAE()
engine = Engine(model, torch.optim.Adam(model.parameters(), 2e-3))
trainer = Trainer(engine, run_dir="runs/vae")
val = data.loader(x[1500:], 99)
trainer.fit(data.loader(x[:1500], 50, shuffle=True), val, epochs=20)
print(f"negative ELBO: {trainer.evaluate(val)['val/loss']:.1f}")
