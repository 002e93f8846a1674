"""How a sink says no.

    SinkError
    ├── RetryableError   nothing known lost: send the same chunk again, later
    └── PermanentError   waiting will not help: the route halts and says what to do

A bad *row* is neither: it is a value in ``WriteResult.rejected``. Any other exception is a bug: the route halts.
Sinks only classify; the one policy that waits lives in ``cdf_replicator.delivery``.
"""

from __future__ import annotations


class SinkError(Exception):
    """Never raised itself; the root for those who catch both."""


class RetryableError(SinkError):
    """The sink is away, overloaded or in transition.

    ``reason`` is one of a small fixed set, since it becomes a metric label: ``unreachable``, ``timeout``,
    ``overloaded``, ``unavailable``, ``out_of_memory``, ``read_only``, ``conflict``. ``detail`` is for people.
    ``retry_after``: seconds the server asked us to wait, if it did.
    """

    def __init__(self, reason: str, detail: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.retry_after = retry_after


class PermanentError(SinkError):
    """Credentials, a missing target, a mapping that does not fit.

    ``reason`` says what is wrong and where; ``hint`` the next thing an operator should do.
    """

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(f"{reason} {hint}")
        self.reason = reason
        self.hint = hint
