"""The configuration: environment variables, and an optional YAML file of the same shape that they override."""

from cdf_replicator.settings.loader import Reading, Settings, load, load_reading
from cdf_replicator.settings.models import Delivery, Http, Log, Spark, Table, moment
from cdf_replicator.settings.parsing.errors import ConfigurationError, Problem

__all__ = [
    "ConfigurationError",
    "Delivery",
    "Http",
    "Log",
    "Problem",
    "Reading",
    "Settings",
    "Spark",
    "Table",
    "load",
    "load_reading",
    "moment",
]
