"""``config.yaml`` of a run that a script started: a record, which nothing can be built from."""

import sys
from pathlib import Path
from typing import Any

import yaml

from stoker.rundir import files
from stoker.rundir.identity import Identity

_MOST_VALUES = 2000
_RUN = ("epochs", "max_steps")


def script_config(identity: Identity) -> str:
    """Return the text of ``config.yaml``: ``params``, limits, and what the run is made of."""
    script = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "an interactive session"
    tree: dict[str, Any] = {files.RECORDED_BY: script}
    if identity.params:
        tree["params"] = identity.params
    tree["run"] = {name: identity.limits.get(name) for name in _RUN}
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
