"""Read the environment and an optional YAML file into settings, or report every problem at once."""

from cdf_replicator.settings.fields import parse_timestamp
from cdf_replicator.settings.loader import Settings, TableSettings, load, load_table_settings
from cdf_replicator.settings.parsing.errors import ConfigurationError

__all__ = ["ConfigurationError", "Settings", "TableSettings", "load", "load_table_settings", "parse_timestamp"]
