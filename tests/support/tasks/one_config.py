"""What the processes of `pool` do in `parallel/test_one_config.py`."""

import pydoc_data.topics
import sys
from pathlib import Path

from stoker.cli import main
from stoker.events import read_json_lines

CONFIG = Path(__file__).parents[3] / "examples" / "char_transformer.yaml"
SHORT = (
    "run.epochs=1", "run.log_every=1", "train_loader.batch_size=16", "val_loader.batch_size=8",
    "train_loader.shuffle=false",
)  # fmt: skip


def train(folder: Path, *overrides: str) -> list[float]:
    """The losses of every step, and of the validation; the last batch has 6 windows, not 16."""
    topics = pydoc_data.topics.topics
    some = topics["assert"] + topics["assignment"]
    pydoc_data.topics.topics = {"some": some.encode("ascii", "ignore").decode()[:5000]}
    sys.modules.pop("char_transformer", None)  # which has read the text when it was imported
    try:
        assert main(["train", str(CONFIG), *SHORT, f"run.dir={folder}", *overrides]) == 0
    finally:
        pydoc_data.topics.topics = topics
        sys.modules.pop("char_transformer", None)
    (run,) = folder.iterdir()
    rows = read_json_lines(run / "metrics.jsonl")
    return [row[name] for row in rows for name in ("train/loss", "val/loss") if name in row]
