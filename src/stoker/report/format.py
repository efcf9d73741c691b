"""Numbers as people say them."""

from datetime import timedelta


def said_seconds(seconds: float) -> str:
    """A time: ``1.2 s``, ``0:12:05``, ``3 days, 1:00:00``."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def said_share(share: float) -> str:
    """A share: ``71.3 %``."""
    return f"{100 * share:.1f} %"
