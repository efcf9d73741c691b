"""Train a character-level transformer on the Python language reference, and let it write.

    python examples/char_transformer.py
    python examples/char_transformer.py --epochs 20

The text is `pydoc_data.topics`, which comes with Python and is what `help("lambda")` reads: some
400,000 characters of real prose. Shows a plain function as the step, a loss that counts by
tokens, a learning rate with warm-up, and clipping.
"""

import argparse
import math
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from stoker import Engine, Output, Trainer, seed_all
from stoker.nn import lr

CONTEXT = 64  # characters that the model looks back


class CharTransformer(nn.Module):
    """For each position the scores of the character that comes next."""

    def __init__(self, characters: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), False)
        self.scores = nn.Linear(width, characters)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        past_only = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.characters(tokens) + self.positions[:length]
        return self.scores(self.layers(x, mask=past_only, is_causal=True))


def next_character(engine: Engine, window: Tensor) -> Output:
    """The step: every character of a window is to be told from those before it."""
    scores, targets = engine(window[:, :-1]), window[:, 1:]
    loss = engine.criterion(scores.flatten(0, 1), targets.flatten())
    return Output(loss, scores, targets, weight=targets.numel())


@torch.no_grad()
def write(engine: Engine, tokens: Tensor, length: int) -> Tensor:
    """The tokens with ``length`` further ones, each drawn from what the model expects."""
    with engine.mode(training=False):
        for _ in range(length):
            scores = engine(tokens[None, -CONTEXT:])[0, -1]
            drawn = torch.multinomial((scores / 0.6).softmax(-1), 1)
            tokens = torch.cat([tokens, drawn.cpu()])
    return tokens


def reference() -> str:
    """The text of all topics. Passages that several share are kept once, lest one be held out."""
    passages = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    return "\n\n".join(dict.fromkeys(passages)).encode("ascii", "ignore").decode()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer on Python's own text.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--run-dir", default="runs/char_transformer")
    parser.add_argument("--fast-dev-run", action="store_true", help="one batch, nothing written")
    args = parser.parse_args()

    torch.set_num_threads(1)  # a net as small as this gains little from more
    seed_all(0)
    text = reference()
    alphabet = sorted(set(text))
    tokens = torch.tensor([alphabet.index(character) for character in text])
    windows = tokens.unfold(0, CONTEXT + 1, CONTEXT)
    held_out = len(windows) // 10
    train = DataLoader(windows[:-held_out], batch_size=16, shuffle=True)
    test = DataLoader(windows[-held_out:], batch_size=128)

    model = CharTransformer(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = lr.cosine(optimizer, args.epochs * len(train), warmup_ratio=0.05)
    engine = Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=schedule, clip_norm=1.0)
    trainer = Trainer(engine, step=next_character, run_dir=args.run_dir)
    trainer.fit(train, test, epochs=args.epochs, fast_dev_run=args.fast_dev_run)

    start = torch.tensor([alphabet.index(character) for character in "The "])
    print("".join(alphabet[token] for token in write(engine, start, length=400)))
    loss, guess = trainer.evaluate(test)["val/loss"], math.log(len(alphabet))
    print(f"held-out loss per character: {loss:.2f} (guessing blindly: {guess:.2f})")


if __name__ == "__main__":
    main()
