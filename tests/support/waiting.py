"""Wait for a condition that a test cannot bring about at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS: Final = 240.0
_PAUSE_SECONDS: Final = 0.05


def until(
    reached: Callable[[], object], within: float = PATIENCE_SECONDS, describe: Callable[[], str] = lambda: ""
) -> None:
    """Return as soon as the condition holds.

    Args:
        reached: The condition.
        within: Seconds after which the test fails.
        describe: Gives the text that the failure shows.
    """
    deadline = time.monotonic() + within
    while not reached():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:.0f} s\n{describe()}")
        time.sleep(_PAUSE_SECONDS)
