"""How a sink says no.

    SinkError
    ├── RetryableError   nothing known lost: send the same chunk again, later
    └── PermanentError   waiting will not help: the route halts and says what to do

A bad *row* is neither: it is a value in ``WriteResult.rejected``. Any other exception is a bug: the route halts.
Sinks only classify; the one policy that waits lives in ``cdf_replicator.delivery``.
"""

from __future__ import annotations

from typing import Final

LOST: Final = "lost"
"""Reason of a ``RetryableError`` after which the same chunk is not sent again: more than that chunk may be missing."""

STORAGE_AWAY: Final = (
    "org.apache.hadoop.fs.s3a.AWSClientIOException",
    "org.apache.hadoop.fs.s3a.AWSServiceThrottledException",
    "org.apache.hadoop.fs.s3a.AWSStatus500Exception",
    "java.net.ConnectException",
    "java.net.UnknownHostException",
    "java.net.NoRouteToHostException",
    "java.net.SocketTimeoutException",
)
"""What a text of Hadoop's file systems holds when an object store, or the network to it, does not answer."""


class SinkError(Exception):
    """Never raised itself; the root for those who catch both."""


class RetryableError(SinkError):
    """The sink is away, overloaded or in transition.

    ``reason`` is one of a small fixed set, since it becomes a metric label: ``unreachable``, ``timeout``,
    ``overloaded``, ``unavailable``, ``out_of_memory``, ``read_only``, ``conflict``, ``certificate_expired``, ``lost``. ``detail`` is for people.
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


# What may have become of a target while a route writes to it; ``{route}`` in a hint is the route's name.


def gone(what: str) -> PermanentError:
    return PermanentError(f"{what}.", "Run: cdf-replicator resync {route}")


def restored(what: str, mark: int) -> PermanentError:
    """``mark``: the last version that the copy holds for certain; -1 if that is not known."""
    if mark < 0:
        return gone(f"{what} was brought back from a copy, and nothing tells how old it is")
    return PermanentError(
        f"{what} was brought back from a copy that ends with version {mark}.",
        f"Run: cdf-replicator replay {{route}} --starting-version {mark + 1}",
    )


def lost(what: str) -> RetryableError:
    """What the sink has acknowledged may be gone: the route starts again from what the target still holds."""
    return RetryableError(LOST, f"{what}: what it took may be lost, and is delivered again")


def claimed(what: str, other: str, option: str) -> PermanentError:
    """``other``: who holds the target, as ``Claim.other`` names it. ``option``: what gives a route another target."""
    return PermanentError(
        f"{what} is filled by {other}.",
        f"Give either of the two routes another {option}; or let this route take the target over: cdf-replicator resync {{route}}",
    )


def fenced(what: str) -> PermanentError:
    return PermanentError(
        f"{what} is written by another instance, which has taken over.",
        "Nothing: this one ends by itself. If it does not, another state path, or another route, claimed the target: "
        "a restart of this route names it.",
    )


def certificate_refused(who: str, text: str) -> SinkError | None:
    """What a connection that failed means, by what OpenSSL says; None if not the server's certificate is to blame.

    One that has expired is renewed where it is, and then the route goes on by itself.
    """
    if "certificate verify failed" not in text.lower():
        return None
    if "expired" in text:
        return RetryableError("certificate_expired", f"{who}: its certificate has expired; renew it")
    if "mismatch" in text:
        return PermanentError(f"{who}: its certificate is made for another name: {text}.", "Use a name it is made for.")
    return PermanentError(f"{who}: its certificate is not trusted: {text}.", "Name its authority in CA_CERTS.")
