"""The paths of later versions: ``colossalai.legacy.engine`` is ``colossalai.engine``."""

import sys

from stoker.dialects.colossalai import *  # noqa: F403

_HOME = __name__.rpartition(".")[0]
for _name, _module in [*sys.modules.items()]:
    if _name.startswith(f"{_HOME}.") and not _name.startswith(__name__):
        sys.modules[__name__ + _name.removeprefix(_HOME)] = _module
