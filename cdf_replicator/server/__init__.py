"""Serve metrics, probes, status, control and queries on one HTTP port."""

from cdf_replicator.server.control import Control
from cdf_replicator.server.queries import Queries
from cdf_replicator.server.server import BindError, Server, start

__all__ = ["BindError", "Control", "Queries", "Server", "start"]
