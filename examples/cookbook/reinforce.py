"""Balance a pole with REINFORCE: the policy makes the data that it learns from."""

import torch
from torch import nn
from torch.distributions import Categorical

from stoker import Engine, Output, Trainer, data, seed_all


def move(state, push):
    """Return the next states of carts with poles: position, speed, angle, turning speed."""
    _, speed, angle, turning = state.unbind(1)
    force = (20 * push - 10 + 0.05 * turning**2 * angle.sin()) / 1.1
    spin = (9.8 * angle.sin() - angle.cos() * force) / (0.667 - 0.0455 * angle.cos() ** 2)
    pull = force - 0.0455 * spin * angle.cos()
    return state + 0.02 * torch.stack([speed, pull, turning, spin], 1)


def episodes(engine, state):
    """Play from the given states until each pole has fallen; reward what came before it."""
    chances, alive = [], [torch.ones(len(state))]
    for _ in range(100):
        choice = Categorical(logits=engine(state))
        push = choice.sample()
        chances.append(choice.log_prob(push) * alive[-1])
        state = move(state, push)
        alive.append(alive[-1] * ((state[:, 2].abs() < 0.2) & (state[:, 0].abs() < 2.4)))
    left = torch.stack(alive[1:]).flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(chances) * (left - left.mean(1, keepdim=True))).sum(0).mean()
    return Output(loss, scalars={"length": sum(alive[1:]).mean()})


seed_all(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
engine = Engine(policy, torch.optim.Adam(policy.parameters(), 0.01), clip_norm=100.0)
trainer = Trainer(engine, step=episodes, run_dir="runs/reinforce")
starts = data.loader(torch.empty(320, 4).uniform_(-0.05, 0.05), 32, shuffle=True)
trainer.fit(starts, epochs=4)
print(f"steps until the pole falls: {trainer.evaluate(starts)['val/length']:.0f}")
