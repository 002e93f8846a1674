"""The command, with a driver that kills itself at a named point: ``python -m tests.chaos.killed_at POINT run``.

The n-th time it comes there, which ``CHAOS_TIMES`` says: micro-batches before are delivered as always.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from cdf_replicator import batch
from cdf_replicator.batch import Delivering
from cdf_replicator.cli import main
from cdf_replicator.dead_letters import DeadLetters
from cdf_replicator.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable

POINTS: Final[dict[str, tuple[Any, str, bool]]] = {
    "after the offset log": (Delivering, "write", False),
    "after the sink write": (batch, "deliver", True),
    "after the dead-letter write": (DeadLetters, "bury", True),
    "before the commit log": (Report, "batch", True),
}
"""Where, what is called there, and whether it is done before the end."""


def fatal(function: Callable[..., Any], times: int, *, done: bool) -> Callable[..., Any]:
    calls = 0

    @functools.wraps(function)
    def wrapped(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < times:
            return function(*given, **named)
        if done:
            function(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    return wrapped


if __name__ == "__main__":
    place, name, done = POINTS[sys.argv.pop(1)]
    setattr(place, name, fatal(getattr(place, name), int(os.environ["CHAOS_TIMES"]), done=done))
    main()
