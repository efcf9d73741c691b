"""Train a character-level transformer on the Python language reference and sample from it.

    python examples/char_transformer.py

The text is `pydoc_data.topics`, 400,000 characters that come with Python. The example shows a
function as the step, a loss weighted by tokens, a learning rate with warm-up, and clipping. The
same as a config is char_transformer.yaml.
"""

import argparse
import math
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from stoker import Engine, Output, Trainer, seed_all
from stoker.nn import Transformer, lr

CONTEXT = 64  # characters that the model sees


def next_character(engine: Engine, window: Tensor) -> Output:
    """Predict every character of a window from those before it: the step."""
    scores, targets = engine(window[:, :-1]), window[:, 1:]
    loss = engine.criterion(scores.flatten(0, 1), targets.flatten())
    return Output(loss, scores, targets, weight=targets.numel())


@torch.no_grad()
def write(engine: Engine, tokens: Tensor, length: int) -> Tensor:
    """Append ``length`` tokens, each sampled from the model's prediction."""
    with engine.mode(training=False):
        for _ in range(length):
            scores = engine(tokens[None, -CONTEXT:])[0, -1]
            drawn = torch.multinomial((scores / 0.6).softmax(-1), 1)
            tokens = torch.cat([tokens, drawn.cpu()])
    return tokens


def alphabet() -> list[str]:
    return sorted(set(reference()))


def vocabulary() -> int:
    return len(alphabet())


def reference() -> str:
    """Return the text of all topics, without duplicate passages that would leak into validation."""
    passages = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    return "\n\n".join(dict.fromkeys(passages)).encode("ascii", "ignore").decode()


def windows(part: str) -> Tensor:
    """Return windows of the text as tokens: the "train" part, or the last tenth, "held_out"."""
    tokens = torch.tensor([*map(alphabet().index, reference())])
    found = tokens.unfold(0, CONTEXT + 1, CONTEXT)
    return found.tensor_split([-(len(found) // 10)])[part == "held_out"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer on Python's own text.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--run-dir", default="runs/char_transformer")
    parser.add_argument("--fast-dev-run", action="store_true", help="one batch, nothing written")
    args = parser.parse_args()
    torch.set_num_threads(1)  # so small a net gains little from more
    seed_all(0)
    train = DataLoader(windows("train"), batch_size=16, shuffle=True)
    test = DataLoader(windows("held_out"), batch_size=128)
    model = Transformer(vocabulary(), CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = lr.cosine(optimizer, args.epochs * len(train), warmup_ratio=0.05)
    engine = Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=schedule, clip_norm=1.0)
    trainer = Trainer(engine, step=next_character, run_dir=args.run_dir)
    trainer.fit(train, test, epochs=args.epochs, fast_dev_run=args.fast_dev_run)

    letters = alphabet()
    start = torch.tensor([*map(letters.index, "The ")])
    print("".join(letters[token] for token in write(engine, start, length=400)))
    loss = f"{trainer.evaluate(test)['val/loss']:.2f}"
    print(f"held-out loss per character: {loss} (guessing blindly: {math.log(len(letters)):.2f})")


if __name__ == "__main__":
    main()
