"""The settings of runs that are worth a column: what people chose, and what differs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.rundir import files
from stoker.rundir.provenance import differences

_PARAMS = "params."
_TENSOR = re.compile(r"[a-z]+\d*\[[\d,]*\]")


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a flat config; of a script's record, without digests and shapes."""
    if files.RECORDED_BY not in config:
        return dict(config)
    return {
        key: value
        for key, value in config.items()
        if key != files.RECORDED_BY and (key.startswith(_PARAMS) or _is_chosen(value))
    }


def _is_chosen(value: Any) -> bool:
    """Return whether a recorded value is a setting, and no digest, shape or default."""
    if value is None or value == "[]":
        return False
    return not (isinstance(value, str) and (" #" in value or _TENSOR.fullmatch(value)))


def column_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings to compare runs by: ``params`` of scripts, and what differs.

    Configs are compared with configs, and records of scripts with each other, because the two have
    other keys. A setting that repeats one of ``params`` for every script is left out.
    """
    recorded = [settings_of(one) for one in configs if files.RECORDED_BY in one]
    written = [dict(one) for one in configs if files.RECORDED_BY not in one]
    params = [key for one in recorded for key in one if key.startswith(_PARAMS)]
    shown = {_values(key, recorded) for key in params}
    of_scripts = [key for key, _ in differences(recorded) if _values(key, recorded) not in shown]
    of_configs = [key for key, _ in differences(written)]
    return list(dict.fromkeys([*params, *of_configs, *of_scripts]))


def _values(key: str, configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(repr(one.get(key)) for one in configs)
