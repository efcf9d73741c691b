"""The job of examples/cookbook/vae.py with Lightning."""

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.utils.data import DataLoader

x = torch.tensor(load_digits().data / 16, dtype=torch.float32)


class VAE(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 64))

    def losses(self, x, part):
        mean, log_var = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        reconstruction = cross_entropy(self.decoder(z), x, reduction="none")
        kl = (mean**2 + log_var.exp() - 1 - log_var) / 2
        losses = {"reconstruction": reconstruction.sum(1).mean(), "kl": kl.sum(1).mean()}
        losses["loss"] = losses["reconstruction"] + losses["kl"]
        self.log_dict({f"{part}_{name}": loss for name, loss in losses.items()}, on_epoch=True)
        return losses["loss"]

    def training_step(self, x, index):
        return self.losses(x, "train")

    def validation_step(self, x, index):
        return self.losses(x, "val")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 2e-3)


L.seed_everything(0)
model = VAE()
trainer = L.Trainer(max_epochs=20, accelerator="cpu", default_root_dir="runs/vae")
val = DataLoader(x[1500:], 99)
trainer.fit(model, DataLoader(x[:1500], 50, shuffle=True), val)
print(f"negative ELBO: {trainer.validate(model, val)[0]['val_loss']:.1f}")
