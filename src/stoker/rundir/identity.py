"""`Identity`: the parts and settings of a run. Only the same run is resumed."""

import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stoker.core.describe import OF_LAYOUT, OF_LENGTH
from stoker.core.digest import digest
from stoker.rundir import files
from stoker.rundir.provenance import ABSENT, differences, flatten, format_value, plain_value

_PYTHON = "{}.{}".format(*sys.version_info)
_MOST_SHOWN = 8
_NOTHING = (None, ABSENT)

MAY_CHANGE = {
    *("run.epochs", "run.max_steps", "run.progress", "run.resume", "run.grace", "run.name"),
    *("run.dir", "run.checkpoint", "run.threads", "run.log_every", "run.parallel"),
    *("run.dead_after", "run.hung_after"),
}
"""The parts of a config that may change when a run is resumed."""

_OF_ARITHMETIC = {"run.parallel.logical_ranks", "run.parallel.sync_batchnorm"}
"""The parts of these that change what is trained."""

_MAY_CHANGE_IN_SCRIPTS = OF_LENGTH | OF_LAYOUT | {"workers", "nproc"}
_BATCH = ("accumulate", "train data.batch_size")


@dataclass(frozen=True)
class Identity:
    """The parts and settings of a run, as flat plain values.

    Attributes:
        parts: model, optimizer, criterion, step, hooks, data and settings by dotted keys.
        params: the config, or what a script passed as ``params``.
        limits: epochs, steps and processes, which may change when a run is resumed.
        python: the version of Python; hashes of code are compared only within one.
        is_config: whether ``params`` is a config.
        fit: which fit of the trainer this is, counted from 1.
    """

    parts: dict[str, Any]
    params: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    python: str = _PYTHON
    is_config: bool = False
    fit: int = 1

    @property
    def digest(self) -> str:
        """Digits that are the same for the same run."""
        params = {k: v for k, v in self.params.items() if not self._may_change(k)}
        return digest((self.parts, params))

    def of_later_fit(self, fit: int, settings: Collection[str]) -> "Identity":
        """Return what a later fit of a trainer adds: its data and settings."""
        parts = {
            key: value
            for key, value in self.parts.items()
            if key in settings or key.startswith(("train data", "val data"))
        }
        return Identity(parts, limits=self.limits, fit=fit)

    def changes(self, before: "Identity") -> list[str]:
        """Return a clause for each difference from an earlier run; empty for the same run.

        What a config or ``params`` says is listed by its keys, and otherwise what was built.
        """
        stated = self._compare(before.params, self.params)
        return stated or self._compare(before.parts, self.parts, before)

    def _compare(
        self, then: Mapping[str, Any], now: Mapping[str, Any], before: "Identity | None" = None
    ) -> list[str]:
        return [
            _clause(key, old, new)
            for key, (old, new) in differences([dict(then), dict(now)])
            if not (old in _NOTHING and new in _NOTHING)
            and not (self._may_change(key) if before is None else self._excused(key, before))
        ]

    def _may_change(self, key: str) -> bool:
        if self.is_config:
            return key not in _OF_ARITHMETIC and ".".join(key.split(".")[:2]) in MAY_CHANGE
        return key.rpartition(".")[2] in _MAY_CHANGE_IN_SCRIPTS

    def _excused(self, key: str, before: "Identity") -> bool:
        """Return whether a difference follows from another length, layout or Python."""
        old, new = before.parts.get(key), self.parts.get(key)
        if key.startswith("lr_scheduler"):
            return _is_stretched(old, new, before.limits, self.limits)
        if key == "torch seed":
            return old is None or new is None
        if key in _BATCH:
            return self._ranks(before) and self._samples() == before._samples()
        if before.python != self.python:
            return key.startswith("code.") or (_is_hash(old) and _is_hash(new))
        return False

    def _ranks(self, before: "Identity") -> bool:
        return bool(before.limits.get("data_ranks") != self.limits.get("data_ranks"))

    def _samples(self) -> Any:
        """Return the samples of a step over all processes, None if unknown."""
        size, ranks = self.parts.get("train data.batch_size"), self.limits.get("data_ranks", 1)
        return size * self.parts["accumulate"] * ranks if isinstance(size, int) else None

    # Files

    def to_json(self) -> str:
        """Return the contents of ``identity.json``."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def load(cls, folder: Path, fit: int = 1) -> "Identity | None":
        """Return the identity of the run in a folder, None if it has none that can be read."""
        try:
            found = json.loads((folder / files.identity_file(fit)).read_text("utf-8"))
            return cls(**found)
        except (OSError, ValueError, TypeError):
            return None


def _is_stretched(old: Any, new: Any, then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a number of a schedule follows the length of the run, or is a share of it."""
    if type(old) is not int or type(new) is not int:
        return False
    if any(old == then.get(n) and new == now.get(n) for n in ("epochs", "max_steps")):
        return True
    before, after = then.get("total_steps"), now.get("total_steps")
    if not before or not after or before == after:
        return False
    return bool(abs(old / before - new / after) <= 1 / min(before, after))


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and " #" in value


def _clause(key: str, old: Any, new: Any) -> str:
    if key.startswith("code."):
        return f"the code of {key.removeprefix('code.')} {_verb(old, new)}"
    return f"{key} was {_shown(old)} and is {_shown(new)}"


def _verb(old: Any, new: Any) -> str:
    if old is ABSENT:
        return "is new"
    return "is gone" if new is ABSENT else "changed"


def _shown(value: Any) -> str:
    text = format_value(value) or "absent"
    return text if len(text) <= 80 else f"{text[:77]}…"


def changes_since(folder: Path, identity: Identity) -> list[str]:
    """Return how the run in a folder differs from one that starts; empty for the same run."""
    before = Identity.load(folder)
    return identity.changes(before) if before is not None else [f"it has no {files.IDENTITY}"]


def params_changes(
    folder: Path, params: Mapping[str, Any], ignored: Collection[str] = ()
) -> list[str]:
    """Return how the config of the run in a folder differs from another; empty for the same.

    Args:
        folder: the run folder.
        params: the other config.
        ignored: top-level keys that do not count.
    """
    before = Identity.load(folder)
    if before is None:
        return [f"it has no {files.IDENTITY}"]
    kept = {k: v for k, v in before.params.items() if k.partition(".")[0] not in ignored}
    before = replace(before, params=kept)
    return Identity(before.parts, flat_params(params), is_config=True).changes(before)


def flat_params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a config, or the parameters of a script, as plain values by dotted keys."""
    return {key: plain_value(value) for key, value in flatten(params or {}).items()}


def list_changes(changes: list[str]) -> str:
    """Return the differences in one line, with a hint if data is drawn at each start."""
    shown = sorted(changes, key=lambda clause: clause.startswith("the code of"))[:_MOST_SHOWN]
    more = f"; and {len(changes) - len(shown)} more" if len(changes) > len(shown) else ""
    return "; ".join(shown) + more + _hint(changes)


def _hint(changes: list[str]) -> str:
    """Return how to fix data that differs at each start of an unchanged script."""
    of_data = [one for one in changes if one.startswith(("train data", "val data")) and "#" in one]
    if not of_data:
        return ""
    if any(".indices" in one for one in of_data):
        fix = "random_split(…, generator=torch.Generator().manual_seed(0))"
    else:
        fix = "torch.manual_seed(0) before the data is made"
    return f" (if you did not change the data, it is drawn at each start: use {fix})"
