"""Publish the status as Prometheus metrics."""

from cdf_replicator.monitoring.metrics.catalog import all_metrics
from cdf_replicator.monitoring.metrics.collector import Metrics

__all__ = ["Metrics", "all_metrics"]
