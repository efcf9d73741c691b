"""What every part of Stoker stands on: errors, types, trees, periods, logs, seeds, processes."""
