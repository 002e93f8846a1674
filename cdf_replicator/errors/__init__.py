"""Define every error that the service raises or knows, and what is done about it."""

from cdf_replicator.errors.exceptions import HaltError, LeaseLostError, StateError, Verdict

__all__ = ["HaltError", "LeaseLostError", "StateError", "Verdict"]
