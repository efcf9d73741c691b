"""Scripts for the older trainers, as their pages have them, and how tests run them."""

import re
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "dialects" / "scripts"

_HOMES = {"bigdl.orca": "orca", "colossalai": "colossalai", "libai": "libai", "towhee": "towhee"}


def renamed(script: str, folder: Path) -> Path:
    """A script with the files it needs, the old package's name replaced in their imports."""
    for file in SCRIPTS.glob(f"{script.partition('_')[0]}_*.py"):
        text = file.read_text()
        for old, new in _HOMES.items():
            name = re.escape(old)
            text = re.sub(rf"^from {name}(?=[ .])", f"from stoker.dialects.{new}", text, flags=re.M)
            text = re.sub(
                rf"^import {name}$", f"from stoker.dialects import {new}", text, flags=re.M
            )
        (folder / file.name).write_text(text)
    return folder / script
