"""Parse raw values of every source, and validate them against the models."""
