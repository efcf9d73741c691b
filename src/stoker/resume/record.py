"""`RunRecord`: what a run writes about itself before its first step."""

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from stoker.checkpoint import Best
from stoker.core import dist
from stoker.core.log import get_logger
from stoker.hooks import Hook
from stoker.hooks.checkpoint import Checkpoint
from stoker.rundir import files
from stoker.rundir.identity import Identity, list_changes
from stoker.rundir.provenance import environment
from stoker.storage import write_atomic

_log = get_logger()

_MOST_VALUES = 2000
_RUN = ("epochs", "max_steps")


class RunRecord:
    """Writes the identity of a run, and for a script its hyper-parameters and environment.

    Args:
        run_dir: the run folder; None for a run without one.
        checkpoints: the folder of its checkpoints, which gets the identity if there is no other.
        identity: what the run is made of; for a later fit of a trainer, what that fit adds.
        hooks: nothing is written if none of them writes.
    """

    def __init__(
        self,
        run_dir: Path | None,
        checkpoints: Path | None,
        identity: Identity | None,
        hooks: Iterable[Hook],
    ) -> None:
        folder = run_dir or checkpoints
        self._folder = folder if any(hook.writes for hook in hooks) else None
        self._is_script = run_dir is not None and identity is not None and not identity.is_config
        self._is_later = identity is not None and identity.fit > 1
        self._identity = identity
        self._best = next((one.best for one in hooks if isinstance(one, Checkpoint)), None)
        self._created: list[Path] = []

    @property
    def info(self) -> dict[str, str]:
        """What checkpoints say of the identity."""
        if self._identity is None or self._is_later:
            return {}
        return {"identity": self._identity.digest}

    def write(self) -> None:
        """Write the files; those of an earlier attempt stay, apart from the identity."""
        folder, identity = self._folder, self._identity
        if folder is None or identity is None or not dist.is_main():
            return
        if self._is_later and (folder / files.identity_file(identity.fit)).exists():
            return
        texts = {folder / files.identity_file(identity.fit): identity.to_json()}
        if self._is_script and not self._is_later:
            names = (folder / files.environment_file(attempt) for attempt in count(1))
            texts[next(path for path in names if not path.exists())] = (
                json.dumps(environment(), indent=2) + "\n"
            )
            texts[folder / files.CONFIG] = _script_config(identity, self._best)
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            self._created += [] if path.exists() else [path]
            write_atomic(path, text)

    def remove(self) -> None:
        """Remove the files of a run that failed before its first step, and an empty folder."""
        for path in self._created:
            path.unlink(missing_ok=True)
        if self._folder is not None:
            with suppress(OSError):  # others may have written into it
                self._folder.rmdir()

    def log_changes(self, checkpoint: Path) -> None:
        """Log how the run of a checkpoint that was restored differs from this one."""
        if self._identity is None or self._is_later:
            return
        for folder in (checkpoint.parent, checkpoint.parent.parent):
            if (before := Identity.load(folder)) is not None:
                if changes := self._identity.changes(before):
                    _log.warning(
                        f"resuming the run in {folder}, which was made differently: "
                        f"{list_changes(changes)}. Optimizer and scheduler stay as saved, so the "
                        "resumed run reproduces neither"
                    )
                return

    def log_changed_fit(self) -> None:
        """Log how a later fit of the trainer differs from the one that an earlier attempt made."""
        folder, identity = self._folder, self._identity
        if folder is None or identity is None or not self._is_later:
            return
        before = Identity.load(folder, identity.fit)
        if before is not None and (changes := identity.changes(before)):
            _log.warning(
                f"fit {identity.fit} of the run in {folder} was made differently: "
                f"{list_changes(changes)}. What it had trained stays; choose another run_dir to "
                "train it from the start"
            )


def _script_config(identity: Identity, best: Best | None) -> str:
    """Return ``config.yaml`` of a run that a script started, which nothing can be built from."""
    script = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "an interactive session"
    tree: dict[str, Any] = {files.RECORDED_BY: script}
    if identity.params:
        tree["params"] = identity.params
    tree["run"] = {name: identity.limits.get(name) for name in _RUN}
    if best is not None:
        tree["run"]["checkpoint"] = {"best": best.metric, "mode": best.mode}
    for key, value in list(identity.parts.items())[:_MOST_VALUES]:
        part, _, rest = key.partition(".")
        if part in ("code", "more"):
            continue
        if not rest and not any(other.startswith(f"{key}.") for other in identity.parts):
            tree["run"][key] = value
        else:
            tree.setdefault(part.replace(" ", "_"), {})[rest or "type"] = value
    note = (
        f"# Recorded by {script}: run the script again to repeat it; no command can build this.\n"
    )
    return note + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=1000)
