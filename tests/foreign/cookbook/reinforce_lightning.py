"""The job of examples/cookbook/reinforce.py with Lightning."""

import lightning as L
import torch
from torch import nn
from torch.distributions import Categorical
from torch.utils.data import DataLoader


def move(state, push):
    """Return the next states of carts with poles: position, speed, angle, turning speed."""
    _, speed, angle, turning = state.unbind(1)
    force = (20 * push - 10 + 0.05 * turning**2 * angle.sin()) / 1.1
    spin = (9.8 * angle.sin() - angle.cos() * force) / (0.667 - 0.0455 * angle.cos() ** 2)
    pull = force - 0.0455 * spin * angle.cos()
    return state + 0.02 * torch.stack([speed, pull, turning, spin], 1)


class Reinforce(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def episodes(self, state, part):
        """Play from the given states until each pole has fallen; reward what came before it."""
        chances, alive = [], [torch.ones(len(state))]
        for _ in range(100):
            choice = Categorical(logits=self.policy(state))
            push = choice.sample()
            chances.append(choice.log_prob(push) * alive[-1])
            state = move(state, push)
            alive.append(alive[-1] * ((state[:, 2].abs() < 0.2) & (state[:, 0].abs() < 2.4)))
        left = torch.stack(alive[1:]).flip(0).cumsum(0).flip(0)
        loss = -(torch.stack(chances) * (left - left.mean(1, keepdim=True))).sum(0).mean()
        self.log(f"{part}_length", sum(alive[1:]).mean(), on_epoch=True)
        self.log(f"{part}_loss", loss, on_epoch=True)
        return loss

    def training_step(self, batch, index):
        return self.episodes(batch, "train")

    def validation_step(self, batch, index):
        self.episodes(batch, "val")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


L.seed_everything(0)
model = Reinforce()
trainer = L.Trainer(max_epochs=4, gradient_clip_val=100.0, default_root_dir="runs/reinforce")
starts = DataLoader(torch.empty(320, 4).uniform_(-0.05, 0.05), 32, shuffle=True)
trainer.fit(model, starts)
print(f"steps until the pole falls: {trainer.validate(model, starts)[0]['val_length']:.0f}")
