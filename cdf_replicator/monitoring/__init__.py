"""Measure the service, and publish its metrics, status and logs."""

__all__ = ["logs", "metrics", "reporter", "status", "status_store"]
