"""Cross-validate: five folds, five runs, one mean."""

import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import KFold
from torch import nn

from stoker import Engine, Trainer, data, hooks, seed_all

x, y = load_wine(return_X_y=True)
x, y = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32), torch.tensor(y)
accuracies = []
for fold, (train, val) in enumerate(KFold(5, shuffle=True, random_state=0).split(x)):
    seed_all(fold)
    model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
    engine = Engine(model, torch.optim.Adam(model.parameters(), 0.01), nn.CrossEntropyLoss())
    watch = [*hooks.default(), hooks.Metrics("accuracy")]
    trainer = Trainer(engine, watch, run_dir=f"runs/k_fold/{fold}")
    val_loader = data.loader((x[val], y[val]), 64)
    trainer.fit(data.loader((x[train], y[train]), 16, shuffle=True), val_loader, epochs=10)
    accuracies.append(trainer.evaluate(val_loader)["val/accuracy"])
spread, mean = torch.std_mean(torch.tensor(accuracies))
print(f"accuracy: {mean:.3f} ± {spread:.3f}")
