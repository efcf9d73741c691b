"""How a job is split over processes."""

from stoker.parallel.layout import Layout

__all__ = ["Layout"]
