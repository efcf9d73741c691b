"""Numbers of a run: one store they are put into, and writers that carry them out."""

from stoker.events.console import Console
from stoker.events.csv import Csv
from stoker.events.history import History
from stoker.events.jsonl import JsonLines, read_json_lines
from stoker.events.media import log_image, log_text
from stoker.events.mlflow import MLflow
from stoker.events.storage import Cursor, EventStorage, Row, get_event_storage
from stoker.events.tensorboard import TensorBoard
from stoker.events.wandb import WandB
from stoker.events.writer import Where, Writer

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
