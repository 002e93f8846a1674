"""Serve metrics, probes, status and control on one HTTP port."""

from cdf_replicator.server.control import Control
from cdf_replicator.server.server import BindError, Server, start

__all__ = ["BindError", "Control", "Server", "start"]
