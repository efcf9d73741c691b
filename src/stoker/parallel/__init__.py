"""How a job is split over processes."""

from stoker.parallel.arrangement import Arrangement, arrange, placed
from stoker.parallel.layout import Layout
from stoker.parallel.numbers import Numbers
from stoker.parallel.pipeline import Stages, is_elsewhere

__all__ = ["Arrangement", "Layout", "Numbers", "Stages", "arrange", "is_elsewhere", "placed"]
