"""The job of examples/cookbook/vae.py with the Hugging Face Trainer."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from transformers import Trainer, TrainingArguments, set_seed

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
        losses = {"reconstruction": reconstruction.sum(1).mean(), "kl": kl.sum(1).mean()}
        return {"loss": losses["reconstruction"] + losses["kl"], **losses}


class LoggingTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        if model.training and self.state.global_step % self.args.logging_steps == 0:
            self.log({name: outputs[name].item() for name in ("reconstruction", "kl")})
        return (outputs["loss"], {}) if return_outputs else outputs["loss"]


set_seed(0)
args = TrainingArguments(
    "runs/vae",
    num_train_epochs=20,
    per_device_train_batch_size=50,
    per_device_eval_batch_size=99,
    learning_rate=2e-3,
    lr_scheduler_type="constant",
    logging_steps=50,
    eval_strategy="epoch",
    label_names=[],
    prediction_loss_only=True,
)
rows = [{"x": image} for image in x]
trainer = LoggingTrainer(VAE(), args, train_dataset=rows[:1500], eval_dataset=rows[1500:])
trainer.can_return_loss = True
trainer.train()
print(f"negative ELBO: {trainer.evaluate()['eval_loss']:.1f}")
