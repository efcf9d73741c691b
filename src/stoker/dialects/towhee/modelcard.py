"""`ModelCard`: the description of a saved model."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn


@dataclass
class ModelCard:
    """The contents of a model's README.md; fields that are None are inferred."""

    model_name: str | None = None
    model_overview: str | None = None
    model_architecture: str | None = None
    dataset: str | None = None
    training_config: dict[str, Any] | None = None
    training_summary: dict[str, Any] = field(default_factory=dict)

    def describe(self, model: nn.Module, data: Any) -> None:
        """Infer missing fields."""
        count = sum(parameter.numel() for parameter in model.parameters())
        self.model_name = self.model_name or type(model).__name__
        self.model_overview = self.model_overview or f"A model with {count:,} parameters."
        self.model_architecture = self.model_architecture or str(model)
        size = f", {len(data):,} samples" if hasattr(data, "__len__") else ""
        self.dataset = self.dataset or f"{type(data).__name__}{size}"

    def save_model_card(self, path: str | Path) -> None:
        """Write the card as Markdown."""
        config = "\n".join(f"- {k}: {v!r}" for k, v in (self.training_config or {}).items())
        summary = "\n".join(f"- {name}: {value}" for name, value in self.training_summary.items())
        text = (
            f"# {self.model_name}\n\n{self.model_overview}\n\n"
            f"## Architecture\n\n```text\n{self.model_architecture}\n```\n\n"
            f"## Dataset\n\n{self.dataset}\n\n## Configuration\n\n{config}\n\n"
            f"## Training summary\n\n{summary}\n"
        )
        Path(path).write_text(text, encoding="utf-8")
