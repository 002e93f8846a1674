"""Define the errors that the service raises or classifies, and the reaction to each."""

from cdf_replicator.errors.exceptions import ErrorDecision, LeaseLostError, RouteHaltError, StateError

__all__ = ["ErrorDecision", "LeaseLostError", "RouteHaltError", "StateError"]
