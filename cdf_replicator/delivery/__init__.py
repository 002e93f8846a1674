"""Write change frames to one sink, with retries, back-pressure and dead letters."""

from cdf_replicator.delivery.driver import deliver
from cdf_replicator.delivery.result import SEVERAL_ROWS, DeliveryBugError, DeliveryResult, RejectedRow
from cdf_replicator.delivery.retry import RetryPolicy

__all__ = ["SEVERAL_ROWS", "DeliveryBugError", "DeliveryResult", "RejectedRow", "RetryPolicy", "deliver"]
