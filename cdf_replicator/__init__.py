"""Replicate the Change Data Feed of Delta tables to other systems."""

__version__ = "0.1.0"
