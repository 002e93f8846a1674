"""The one retry policy: exponential back-off with full jitter, a budget, and the server's own word respected.

Sinks classify, this waits. Full jitter: https://aws.amazon.com/builders-library (timeouts, retries and backoff).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay

from connectors import RetryableError
from connectors.errors import LOST

if TYPE_CHECKING:
    from tenacity import BaseRetrying

Sleep = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """``budget_seconds``: how long one write is tried before the batch is given back. ``cap_seconds``: longest wait."""

    budget_seconds: float = 30.0
    first_seconds: float = 0.1
    cap_seconds: float = 10.0

    def backoff(self, attempt: int) -> float:
        """Seconds to wait after the ``attempt``-th failure (from 1): anywhere below the exponential bound."""
        return random.uniform(0, min(self.cap_seconds, self.first_seconds * 2 ** min(attempt, 30)))  # noqa: S311 - not cryptography

    def retrying(self, on_retry: Callable[[RetryableError], None], sleep: Sleep = time.sleep) -> BaseRetrying:
        """Return the loop around one write; re-raises the last ``RetryableError`` once the budget is spent."""

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.retry_after if isinstance(error, RetryableError) else None
            return max(asked or 0.0, self.backoff(state.attempt_number))

        def before_sleep(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            if isinstance(error, RetryableError):
                on_retry(error)

        return Retrying(
            retry=retry_if_exception(_may_pass),
            # A wait that would end after the budget is not begun: a worker asleep can't be stopped, a route can.
            stop=stop_before_delay(self.budget_seconds),
            wait=wait,
            before_sleep=before_sleep,
            sleep=sleep,
            reraise=True,
        )


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, RetryableError) and error.reason != LOST
