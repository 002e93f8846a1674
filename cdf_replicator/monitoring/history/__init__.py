"""Keep the newest events, and the lag, rows and latency of each route over the last hour and day, since the start."""

from cdf_replicator.monitoring.history.event_log import EventLog
from cdf_replicator.monitoring.history.history import SPANS, STEP_SECONDS, History
from cdf_replicator.monitoring.history.ring import Samples

__all__ = ["SPANS", "STEP_SECONDS", "EventLog", "History", "Samples"]
