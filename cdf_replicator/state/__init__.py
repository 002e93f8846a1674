"""Store route state, commands and the lease under the state path."""

from cdf_replicator.state.command_queue import Command, CommandStatus
from cdf_replicator.state.lease import Lease, LeaseHeldError
from cdf_replicator.state.route_state import RouteState
from cdf_replicator.state.store import StateStore

__all__ = ["Command", "CommandStatus", "Lease", "LeaseHeldError", "RouteState", "StateStore"]
