"""Measure what the service does, and publish it as metrics, status and logs."""

__all__ = ["logs", "metrics", "reporter", "status", "status_store"]
