"""What tests of single behaviours of several processes share."""

from typing import Any

import torch

TENSOR = {"1.0.0": "gather", "1.2.0": "gather"}
"""A plan for `tasks.layouts.net`."""


def close(found: dict[str, Any], wanted: dict[str, Any], tolerance: float = 1e-12) -> None:
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=tolerance, msg=name)
