"""What is told of runs afterwards: goodput, and a report in one file."""

from stoker.report.goodput import KINDS, Attempt, Entry, Goodput, Loss, goodput_of, read_ledger

__all__ = ["KINDS", "Attempt", "Entry", "Goodput", "Loss", "goodput_of", "read_ledger"]
