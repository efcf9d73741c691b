"""Dividing data between ranks."""
