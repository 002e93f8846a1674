"""cdf-replicator follows the Change Data Feed of Delta tables and keeps other systems in step."""

__version__ = "0.1.0"
