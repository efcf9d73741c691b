"""`Provenance`: save the configuration and environment of a run."""

import json
from itertools import count
from pathlib import Path

from stoker.config import Config
from stoker.core import dist
from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run
from stoker.rundir import files
from stoker.rundir.provenance import environment
from stoker.storage import write_atomic


class Provenance(Hook):
    """Saves the exact configuration and the environment of a run before it trains."""

    priority = Priority.MEASURE
    same_on_all_ranks = True
    writes = True

    def __init__(self, config: Config) -> None:
        self._config = config
        self._created: list[Path] = []

    def before_train(self, run: Run) -> None:
        """Write both files."""
        if run.dir is None or not dist.is_main():
            return
        run.dir.mkdir(parents=True, exist_ok=True)
        config = run.dir / files.CONFIG
        is_new = not config.exists()
        self._config.save(config)
        names = (run.dir / files.environment_file(attempt) for attempt in count(1))
        env = next(path for path in names if not path.exists())
        write_atomic(env, json.dumps(environment(), indent=2) + "\n")
        self._created = [env, *([config] if is_new else [])]

    def on_exception(self, run: Run) -> None:
        """Remove the files of a run that failed before its first step."""
        if run.step == 0:
            for path in self._created:
                path.unlink(missing_ok=True)
