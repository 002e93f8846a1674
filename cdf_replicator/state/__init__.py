"""Keep what must survive a restart, and the lease on it, under the state path."""

from cdf_replicator.state.command_queue import Progress, Request
from cdf_replicator.state.lease import Lease, LeaseHeldError
from cdf_replicator.state.route_state import RouteState
from cdf_replicator.state.store import StatePath

__all__ = ["Lease", "LeaseHeldError", "Progress", "Request", "RouteState", "StatePath"]
