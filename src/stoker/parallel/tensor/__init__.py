"""Tensor parallelism: split layers over processes by a plan."""
