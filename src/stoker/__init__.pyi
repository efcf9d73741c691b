from stoker import config as config
from stoker import data as data
from stoker import dialects as dialects
from stoker import events as events
from stoker import hooks as hooks
from stoker import launch as launch
from stoker import metrics as metrics
from stoker import nn as nn
from stoker import testing as testing
from stoker.core.errors import CheckpointError as CheckpointError
from stoker.core.errors import NonFiniteError as NonFiniteError
from stoker.core.errors import Preempted as Preempted
from stoker.core.errors import RankFailed as RankFailed
from stoker.core.errors import StokerError as StokerError
from stoker.core.every import Every as Every
from stoker.core.seed import seed_all as seed_all
from stoker.core.types import Output as Output
from stoker.engine import Engine as Engine
from stoker.engine import ForwardBackward as ForwardBackward
from stoker.engine import PipelineSchedule as PipelineSchedule
from stoker.engine import PlainSchedule as PlainSchedule
from stoker.engine import RetrySchedule as RetrySchedule
from stoker.engine import Schedule as Schedule
from stoker.engine import StepContext as StepContext
from stoker.hooks import Hook as Hook
from stoker.hooks import Priority as Priority
from stoker.metrics import Metric as Metric
from stoker.parallel import Layout as Layout
from stoker.resume.weights import load_weights as load_weights
from stoker.run import Run as Run
from stoker.step import Step as Step
from stoker.trainer import Trainer as Trainer

__version__: str

__all__: list[str]
