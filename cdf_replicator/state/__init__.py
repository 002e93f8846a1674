"""Store route state, commands and the lease under the state path."""

from cdf_replicator.state.command_queue import Progress, Request
from cdf_replicator.state.lease import Lease, LeaseHeldError
from cdf_replicator.state.route_state import RouteState
from cdf_replicator.state.store import StatePath

__all__ = ["Lease", "LeaseHeldError", "Progress", "Request", "RouteState", "StatePath"]
