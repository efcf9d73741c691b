"""Event storage and writers that count iterations from 0."""

import logging
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import Tensor

from stoker import Engine, events
from stoker.core import dist
from stoker.events import Row, RunProgress, Writer

_log = logging.getLogger("libai.events")
HistoryBuffer = events.HistoryBuffer


class EventStorage(events.EventStorage):
    """An event storage that counts started iterations instead of finished ones."""

    def __init__(self, start_iter: int = 0, *, window: int = 20) -> None:
        super().__init__(window=window, step=start_iter + 1)
        self.samples = 0
        self.engine: Engine | None = None  # of the run that is in progress
        self.images: list[tuple[str, Tensor, int]] = []
        self.apart: Counter[str] = Counter()  # values that are this process's own yet, by name
        self._several = dist.world_size() > 1

    @property
    def iter(self) -> int:
        """The current iteration."""
        return max(0, self.step - 1)

    @iter.setter
    def iter(self, value: int) -> None:
        self.step = value + 1

    def increment(self) -> None:
        """Advance to the next iteration, if no trainer does it."""
        self.step += 1

    def put_apart(self, name: str, value: Any) -> None:
        """Store a number of this process, which `share` averages over all processes."""
        self.put_scalar(name, value)
        if self._several:
            self.apart[self._prefix + name] += 1

    def share(self) -> None:
        """Average the numbers of `put_apart` over all processes; every process must call it."""
        new = [(self._series[name].values, count) for name, count in self.apart.items()]
        self.apart.clear()
        places = [(vs, at) for vs, count in new for at in range(-min(count, len(vs)), 0)]
        if places:
            sums = dist.all_reduce_sum(*(float(values[at]) for values, at in places))
            for (values, at), one in zip(places, sums, strict=True):
                values[at] = one / dist.world_size()

    def state_dict(self) -> dict[str, Any]:
        """Return the stored numbers, and those not averaged yet."""
        return {**super().state_dict(), "apart": dict(self.apart)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the stored numbers."""
        super().load_state_dict(state)
        self.apart = Counter(state["apart"])

    def put_image(self, img_name: str, img_tensor: Tensor) -> None:
        """Store an image of shape (channels, height, width) for TensorBoard."""
        self.images.append((img_name, img_tensor.detach(), self.iter))

    def clear_images(self) -> None:
        """Discard the images, after a writer has written them."""
        self.images = []

    def latest(self) -> dict[str, tuple[float, int]]:
        """Return the latest value and its iteration for each name."""
        return {name: (value, step - 1) for name, (value, step) in super().latest().items()}

    def latest_with_smoothing_hint(self, window_size: int = 20) -> dict[str, tuple[float, int]]:
        """Return the latest value, or the median of smoothed names, for each name."""
        smooth = self.smoothing_hints()
        return {
            name: (self.history(name).median(window_size) if smooth[name] else value, at)
            for name, (value, at) in self.latest().items()
        }


def get_event_storage() -> EventStorage:
    """Return the storage of the current run, for example to log from inside a model."""
    storage = events.get_event_storage()
    assert isinstance(storage, EventStorage), "a Stoker run without LiBai's trainer is in progress"
    return storage


class EventWriter:
    """The base class of custom writers, which read `get_event_storage` in `write`."""

    def write(self) -> None:
        """Write the current events."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the writer."""


class JSONWriter(events.JsonLines):
    """Append JSON lines to a file; ``iteration`` counts from 0."""

    def __init__(self, json_file: str | Path, window_size: int = 20) -> None:
        super().__init__(json_file)
        self.window_size = window_size

    def write(self, rows: list[Row], progress: RunProgress) -> None:
        """Write one line per iteration with sorted names."""
        super().write([Row(row.step, dict(sorted(row.scalars.items()))) for row in rows], progress)

    def head(self, row: Row, progress: RunProgress, now: float) -> dict[str, Any]:
        """Return the iteration."""
        return {"iteration": max(0, row.step - 1)}


class TensorboardXWriter(events.TensorBoard):
    """Write numbers and images to TensorBoard, with the iteration as the x axis."""

    def __init__(self, log_dir: str | Path, window_size: int = 20) -> None:
        super().__init__(log_dir)
        self.window_size = window_size

    def write(self, rows: list[Row], progress: RunProgress) -> None:
        """Write the numbers and new images."""
        super().write([Row(max(0, row.step - 1), row.scalars) for row in rows], progress)
        storage = get_event_storage()
        for name, image, at in storage.images:
            self._writer.add_image(name, image, at)
        storage.clear_images()


class CommonMetricPrinter(Writer):
    """Print one line: time left, iteration, losses, speed and learning rate."""

    def __init__(self, batch_size: int, max_iter: int) -> None:
        super().__init__(None)
        self._batch_size, self._max_iter, self._shown = batch_size, max_iter, -1

    def write(self, rows: list[Row], progress: RunProgress) -> None:
        """Print the line of the latest iteration once."""
        row = next((row for row in rows if row.step == progress.step > self._shown), None)
        if row is None or not any("loss" in name for name in row.scalars):
            return
        self._shown, found = row.step, row.scalars
        eta = [f"eta: {timedelta(seconds=round(progress.eta))}"] if progress.eta is not None else []
        parts = [*eta, f"iteration: {row.step - 1}/{self._max_iter}"]
        parts.append(f"consumed_samples: {progress.samples}")
        parts += [f"{name}: {value:.4g}" for name, value in found.items() if "loss" in name]
        parts += [f"{n}: {found[n]:.4f} s/iter" for n in ("time", "data_time") if n in found]
        if found.get("time"):
            parts.append(f"total_throughput: {self._batch_size / found['time']:.2f} samples/s")
        if "lr" in found:
            parts.append(f"lr: {found['lr']:.2e}")
        _log.info("  ".join(parts))


class Foreign(Writer):
    """Call an `EventWriter` whenever Stoker's writers write."""

    def __init__(self, writer: Any) -> None:
        super().__init__(None)
        self._writer = writer

    def write(self, rows: list[Row], progress: RunProgress) -> None:
        """Call the writer."""
        self._writer.write()

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()
