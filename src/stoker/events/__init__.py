"""Numbers of a run: one store they are put into, and writers that carry them out."""

from stoker.events.history import History
from stoker.events.media import log_image, log_text
from stoker.events.storage import Cursor, EventStorage, Row, get_event_storage
from stoker.events.writers.base import Where, Writer
from stoker.events.writers.console import Console
from stoker.events.writers.csv import Csv
from stoker.events.writers.jsonl import JsonLines, read_json_lines
from stoker.events.writers.mlflow import MLflow
from stoker.events.writers.tensorboard import TensorBoard
from stoker.events.writers.wandb import WandB

__all__ = [
    "Console",
    "Csv",
    "Cursor",
    "EventStorage",
    "History",
    "JsonLines",
    "MLflow",
    "Row",
    "TensorBoard",
    "WandB",
    "Where",
    "Writer",
    "get_event_storage",
    "log_image",
    "log_text",
    "read_json_lines",
]
