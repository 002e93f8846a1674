"""Measure what the service does, and publish it as metrics, status and logs."""
