"""Define the errors that the service raises or classifies, and the reaction to each."""

from cdf_replicator.errors.exceptions import HaltError, LeaseLostError, StateError, Verdict

__all__ = ["HaltError", "LeaseLostError", "StateError", "Verdict"]
