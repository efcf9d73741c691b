"""`Provenance`: write down what a run was made from."""

import json
from pathlib import Path
from typing import Any

from stoker.config import Config
from stoker.core import dist
from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run
from stoker.rundir.provenance import digest_of, environment
from stoker.storage import write_atomic


class Provenance(Hook):
    """Writes the exact configuration and the environment of a run before it trains."""

    priority = Priority.MEASURE
    same_on_all_ranks = True
    writes = True

    def __init__(self, config: Config) -> None:
        self._config, self._digest = config, ""
        self._made: list[Path] = []

    def info(self) -> dict[str, Any]:
        """The digest of the config, so that checkpoints of one config are known by it."""
        self._digest = self._digest or digest_of(self._config)
        return {"config": self._digest}

    def before_train(self, run: Run) -> None:
        """Write both files."""
        if run.dir is None or not dist.is_main():
            return
        run.dir.mkdir(parents=True, exist_ok=True)
        is_new = not (run.dir / "config.yaml").exists()
        self._config.save(run.dir / "config.yaml")
        env = self._next_name(run.dir)
        write_atomic(env, json.dumps(environment(), indent=2) + "\n")
        self._made = [env, *([run.dir / "config.yaml"] if is_new else [])]

    def on_exception(self, run: Run) -> None:
        """A run that failed before its first step leaves nothing behind."""
        if run.step == 0:
            for path in self._made:
                path.unlink(missing_ok=True)

    def _next_name(self, folder: Path) -> Path:
        """``env.json``, and ``env-2.json`` for the second attempt at a run."""
        number, path = 1, folder / "env.json"
        while path.exists():
            number += 1
            path = folder / f"env-{number}.json"
        return path
