"""Parse the raw values of each source, and validate them against the models."""

from cdf_replicator.settings.parsing.errors import ConfigurationError, Problem
from cdf_replicator.settings.parsing.raw import Given, Tree
from cdf_replicator.settings.parsing.sources import gathered
from cdf_replicator.settings.parsing.validation import judged

__all__ = ["ConfigurationError", "Given", "Problem", "Tree", "gathered", "judged"]
