"""Tensor parallelism: layers split over ranks by a plan."""
