"""Read the environment and an optional YAML file into settings, or report every problem at once."""

from cdf_replicator.settings.loader import Reading, Settings, load, load_reading
from cdf_replicator.settings.models import moment
from cdf_replicator.settings.parsing.errors import ConfigurationError

__all__ = ["ConfigurationError", "Reading", "Settings", "load", "load_reading", "moment"]
