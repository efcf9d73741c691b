"""`ModelCard`: the description of a saved model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

MODEL_CARD_NAME = "README.md"

_LISTS = ("language", "tags", "tasks", "datasets_tags", "dataset_args", "eval_lines")


@dataclass
class ModelCard:
    """The contents of a model's README.md. The trainer fills in what is None and it knows."""

    model_name: str | None = None
    model_architecture: str | None = None
    model_overview: str | None = None
    language: str | list[str] | None = None
    tags: str | list[str] | None = None
    tasks: str | list[str] | None = None
    datasets: str | list[str] | None = None
    datasets_tags: str | list[str] | None = None
    dataset_args: str | list[str] | None = None
    eval_results: dict[str, float] | None = None
    eval_lines: list[str] | None = None
    training_summary: dict[str, Any] | None = None
    training_config: Any = None
    source: str | None = "trainer"

    def describe(self, model: nn.Module, data: Any) -> None:
        """Fill in the fields that are None from the model and the data."""
        count = sum(parameter.numel() for parameter in model.parameters())
        self.model_name = self.model_name or type(model).__name__
        self.model_overview = self.model_overview or f"A model with {count:,} parameters."
        self.model_architecture = self.model_architecture or str(model)
        size = f", {len(data):,} samples" if hasattr(data, "__len__") else ""
        if self.datasets is None and data is not None:
            self.datasets = f"{type(data).__name__}{size}"

    def save_model_card(self, save_directory_or_file: str | Path) -> None:
        """Write the card as Markdown, to a file or as README.md of a folder."""
        path = Path(save_directory_or_file)
        path = path / MODEL_CARD_NAME if path.is_dir() else path
        path.write_text(self._text(), encoding="utf-8")

    def _text(self) -> str:
        config = self.training_config
        config = config.to_dict() if hasattr(config, "to_dict") else config
        more = {name: value for name in _LISTS if (value := getattr(self, name))}
        sections = {
            "Architecture": f"```text\n{self.model_architecture}\n```",
            "Dataset": str(self.datasets or "unknown"),
            "Details": _listed(more),
            "Evaluation": _listed(self.eval_results),
            "Configuration": _listed(config, repr),
            "Training summary": _listed(self.training_summary),
        }
        parts = [f"# {self.model_name}", self.model_overview or ""]
        parts += [f"## {title}\n\n{text}" for title, text in sections.items() if text]
        return "\n\n".join(parts) + "\n"


def _listed(values: dict[str, Any] | None, show: Any = str) -> str:
    return "\n".join(f"- {name}: {show(value)}" for name, value in (values or {}).items())
