"""Read the configuration again while the service runs, and plan which routes start, stop and restart."""

from cdf_replicator.runtime.reload.configuration import Configuration, Reload, Selection
from cdf_replicator.runtime.reload.requests import ReloadRequests

__all__ = ["Configuration", "Reload", "ReloadRequests", "Selection"]
