"""Events: one storage for the numbers of a run, and writers that export them."""

from stoker.core.calls import explain_calls
from stoker.events.history import History
from stoker.events.media import log_image, log_text
from stoker.events.storage import Cursor, EventStorage, HistoryBuffer, Row, get_event_storage
from stoker.events.writers.base import RunProgress, Writer
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
    "HistoryBuffer",
    "JsonLines",
    "MLflow",
    "Row",
    "RunProgress",
    "TensorBoard",
    "WandB",
    "Writer",
    "get_event_storage",
    "log_image",
    "log_text",
    "read_json_lines",
]


explain_calls(globals(), __all__)
