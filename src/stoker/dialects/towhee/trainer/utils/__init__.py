"""Utilities for models."""
