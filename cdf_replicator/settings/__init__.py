"""The configuration: environment variables alone, an optional YAML file of the same shape below them."""

from cdf_replicator.settings.load import Settings, load
from cdf_replicator.settings.models import Delivery, Http, Log, Spark, Table
from cdf_replicator.settings.problems import ConfigurationError, Problem

__all__ = ["ConfigurationError", "Delivery", "Http", "Log", "Problem", "Settings", "Spark", "Table", "load"]
