"""Keep the lag, the delivered rows and the latency of each route over the last hour and day, 26 KB a route, since the start."""

from cdf_replicator.monitoring.history.history import SPANS, STEP_SECONDS, History
from cdf_replicator.monitoring.history.ring import Samples

__all__ = ["SPANS", "STEP_SECONDS", "History", "Samples"]
