"""The trainer of LiBai: lazy configs, four hook points, iterations."""
