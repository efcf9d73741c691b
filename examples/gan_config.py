"""The config of gan.py: two named optimizers and a custom step.

stoker train examples/gan_config.py
stoker train examples/gan_config.py optimizer.critic.lr=2e-3 run.epochs=300
"""

from gan import Gan, GanStep, images, noise
from torch.optim import Adam
from torch.utils.data import DataLoader

from stoker.config import L

model = L(Gan)()
optimizer = {  # each gets the parameters of the submodule with its name
    "generator": L(Adam)(lr=1e-3, betas=(0.0, 0.9)),
    "critic": L(Adam)(lr=4e-3, betas=(0.0, 0.9)),
}
step = L(GanStep)()
train_loader = L(DataLoader)(dataset=L(images)(), batch_size=64, shuffle=True, drop_last=True)
predict_loader = L(DataLoader)(dataset=L(noise)(10), batch_size=10)
run = {"name": "gan", "epochs": 60, "threads": 1}
