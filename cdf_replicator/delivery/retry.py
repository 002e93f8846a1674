"""Retry writes with exponential back-off, full jitter and a budget; a wait that the server names counts as a minimum.

Sinks classify errors, and only this module waits. Full jitter: https://aws.amazon.com/builders-library (timeouts,
retries and backoff).
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
    """The retry policy of a write.

    Args:
        budget_seconds: Longest time for the retries of a write; then the batch fails.
        first_seconds: Upper bound of the wait before the first retry, doubled for each further retry.
        cap_seconds: Longest wait before a retry.
    """

    budget_seconds: float = 30.0
    first_seconds: float = 0.1
    cap_seconds: float = 10.0

    def backoff(self, attempt: int) -> float:
        """Return the seconds to wait after failure number ``attempt`` (from 1): random, below the exponential bound."""
        return random.uniform(0, min(self.cap_seconds, self.first_seconds * 2 ** min(attempt, 30)))  # noqa: S311 - not cryptography

    def retrying(
        self, on_retry: Callable[[RetryableError], None], sleep: Sleep = time.sleep, *, waits_only: bool = False
    ) -> BaseRetrying:
        """Return the retry loop of a write; raises the last ``RetryableError`` again at the end of the budget.

        Args:
            on_retry: Called before each wait.
            sleep: Waits.
            waits_only: Whether the budget is for the waits alone. A MERGE may take longer than the budget and then lose against
                another commit.
        """

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            requested = error.retry_after if isinstance(error, RetryableError) else None
            return max(requested or 0.0, self.backoff(state.attempt_number))

        def before_sleep(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            if isinstance(error, RetryableError):
                on_retry(error)

        def is_spent(state: RetryCallState) -> bool:
            return state.idle_for + state.upcoming_sleep >= self.budget_seconds

        return Retrying(
            retry=retry_if_exception(_may_pass),
            # A sleeping worker can't be stopped, a route can: no wait starts that would end after the budget.
            stop=is_spent if waits_only else stop_before_delay(self.budget_seconds),
            wait=wait,
            before_sleep=before_sleep,
            sleep=sleep,
            reraise=True,
        )


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, RetryableError) and error.reason != LOST
