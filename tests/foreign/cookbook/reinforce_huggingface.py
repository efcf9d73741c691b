"""The job of examples/cookbook/reinforce.py with the Hugging Face Trainer."""

import torch
from torch import nn
from torch.distributions import Categorical
from transformers import Trainer, TrainingArguments, set_seed


def move(state, push):
    """Return the next states of carts with poles: position, speed, angle, turning speed."""
    _, speed, angle, turning = state.unbind(1)
    force = (20 * push - 10 + 0.05 * turning**2 * angle.sin()) / 1.1
    spin = (9.8 * angle.sin() - angle.cos() * force) / (0.667 - 0.0455 * angle.cos() ** 2)
    pull = force - 0.0455 * spin * angle.cos()
    return state + 0.02 * torch.stack([speed, pull, turning, spin], 1)


class Reinforce(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, state):
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
        return {"loss": loss, "length": sum(alive[1:])}


def mean_length(prediction):
    return {"length": prediction.predictions.mean()}


set_seed(0)
args = TrainingArguments(
    "runs/reinforce",
    num_train_epochs=4,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=32,
    learning_rate=0.01,
    lr_scheduler_type="constant",
    max_grad_norm=100.0,
    label_names=[],
    include_for_metrics=["loss"],
)
starts = [{"state": state} for state in torch.empty(320, 4).uniform_(-0.05, 0.05)]
trainer = Trainer(
    Reinforce(), args, train_dataset=starts, eval_dataset=starts, compute_metrics=mean_length
)
trainer.can_return_loss = True
trainer.train()
print(f"steps until the pole falls: {trainer.evaluate()['eval_length']:.0f}")
