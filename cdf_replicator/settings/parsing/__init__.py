"""Parse the raw values of each source, and validate them against the models."""

from cdf_replicator.settings.parsing.errors import ConfigProblem, ConfigurationError
from cdf_replicator.settings.parsing.raw import RawTree, RawValue
from cdf_replicator.settings.parsing.sources import read_sources
from cdf_replicator.settings.parsing.validation import validate

__all__ = ["ConfigProblem", "ConfigurationError", "RawTree", "RawValue", "read_sources", "validate"]
