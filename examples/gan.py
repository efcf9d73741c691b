"""Train a GAN on scikit-learn's handwritten digits, and generate new ones.

    python examples/gan.py
    python examples/gan.py --epochs 300

The example shows an engine with two optimizers and a custom `Step`: one update of the critic and
one of the generator together count as one step. The same as a config is gan_config.py.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Output, Run, Step, Trainer, seed_all

NOISE = 16  # dimensions of the noise vector
SHADES = " .:-=+*#%@"


class Gan(nn.Module):
    """A generator that draws 8x8 images from noise, and a critic that scores images."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(NOISE, 128), nn.BatchNorm1d(128), nn.ReLU(),
            nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(),
            nn.Linear(128, 64), nn.Sigmoid(),
        )  # fmt: skip
        self.critic = nn.Sequential(
            spectral_norm(nn.Linear(64, 128)), nn.LeakyReLU(0.2),
            spectral_norm(nn.Linear(128, 128)), nn.LeakyReLU(0.2),
            spectral_norm(nn.Linear(128, 1)),
        )  # fmt: skip

    def forward(self, noise: Tensor) -> Tensor:
        return self.generator(noise)


class GanStep(Step):
    """Update each network once. The critic learns to score real images high and drawn ones low."""

    def train(self, run: Run) -> None:
        engine, critic = run.engine, run.engine.model.critic
        (real,) = engine.place(run.batches[0])
        drawn = engine(torch.randn(len(real), NOISE))

        engine.zero_grad("critic")
        critic_loss = (1 - critic(real)).relu().mean() + (1 + critic(drawn.detach())).relu().mean()
        engine.backward(critic_loss)
        engine.step("critic")

        engine.zero_grad("generator")
        generator_loss = -critic(drawn).mean()
        engine.backward(generator_loss)
        engine.step("generator")
        losses = {"generator_loss": generator_loss, "critic_loss": critic_loss}
        run.add_output(Output(outputs=drawn, scalars=losses))


def images() -> TensorDataset:
    return TensorDataset(torch.tensor(load_digits().data, dtype=torch.float32) / 16)


def noise(drawings: int, seed: int = 1) -> Tensor:
    return torch.randn(drawings, NOISE, generator=torch.Generator().manual_seed(seed))


def as_text(drawn: Tensor, columns: int = 5) -> str:
    """Render 8x8 images in rows, each pixel as two characters from light to dark."""
    sheet = drawn.reshape(-1, columns, 8, 8).transpose(1, 2).reshape(-1, columns * 8)
    return "\n".join("".join(SHADES[round(9 * p)] * 2 for p in line) for line in sheet.tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a GAN on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--run-dir", default="runs/gan")
    parser.add_argument("--fast-dev-run", action="store_true", help="one batch, nothing written")
    args = parser.parse_args()
    torch.set_num_threads(1)  # so small a net gains little from more
    seed_all(0)
    train = DataLoader(images(), batch_size=64, shuffle=True, drop_last=True)
    model = Gan()
    generator = torch.optim.Adam(model.generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    critic = torch.optim.Adam(model.critic.parameters(), lr=4e-3, betas=(0.0, 0.9))
    engine = Engine(model, {"generator": generator, "critic": critic})
    trainer = Trainer(engine, step=GanStep(), run_dir=args.run_dir)
    trainer.fit(train, epochs=args.epochs, fast_dev_run=args.fast_dev_run)

    print(as_text(trainer.predict(noise(10))))
    print(f"ten digits, drawn from noise after {trainer.run.step} steps of two updates each")


if __name__ == "__main__":
    main()
