"""Errors that sinks raise.

    SinkError
    ├── RetryableError   a temporary fault: the service sends the same chunk again later
    └── PermanentError   a retry can't succeed: the route halts and names the operator's next step

A bad *row* raises no error: the sink returns it in ``WriteResult.rejected``. Any other exception is a bug: the route halts.
Sinks classify errors and never wait. The retry policy is in ``cdf_replicator.delivery``.
"""

from __future__ import annotations

from typing import Final

RECONFIGURE: Final = "restart, or reload a changed file: cdf-replicator reload"
"""End of a hint that names settings of a sink or of a route."""
LOST: Final = "lost"
"""Reason of a ``RetryableError`` after which the route restarts: more than the present chunk may be lost."""

STORAGE_UNAVAILABLE: Final = (
    "org.apache.hadoop.fs.s3a.AWSClientIOException",
    "org.apache.hadoop.fs.s3a.AWSServiceThrottledException",
    "org.apache.hadoop.fs.s3a.AWSStatus500Exception",
    "java.net.ConnectException",
    "java.net.UnknownHostException",
    "java.net.NoRouteToHostException",
    "java.net.SocketTimeoutException",
)
"""Class names in Hadoop's error texts that mean: the object store, or the network to it, does not respond."""


class SinkError(Exception):
    """Common base of ``RetryableError`` and ``PermanentError``; never raised itself."""


class RetryableError(SinkError):
    """The sink is unavailable, overloaded or in transition.

    Args:
        reason: A label of a metric: ``unreachable``, ``timeout``, ``overloaded``, ``unavailable``, ``out_of_memory``,
            ``read_only``, ``conflict``, ``certificate_expired`` or ``lost``.
        detail: Text for the operator.
        retry_after: Seconds to wait, if the server named a time.
    """

    def __init__(self, reason: str, detail: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.retry_after = retry_after


class PermanentError(SinkError):
    """A fault that the operator has to correct: wrong credentials, a missing target, a mapping that does not fit.

    Args:
        reason: The fault and its place, as a sentence.
        hint: The operator's next step. ``{route}`` in it becomes the route's name.
    """

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(f"{reason} {hint}")
        self.reason = reason
        self.hint = hint


def target_missing(what: str) -> PermanentError:
    """Return the error for a target that vanished while a route writes to it; ``what`` is the sentence without its period."""
    return PermanentError(f"{what}.", "Run: cdf-replicator resync {route}")


def target_restored(what: str, mark: int) -> PermanentError:
    """Return the error for a target restored from a copy that holds every version up to ``mark``; -1 if that is unknown."""
    if mark < 0:
        return target_missing(f"{what} was restored from a copy of unknown age")
    return PermanentError(
        f"{what} was restored from a copy that ends with version {mark}.",
        f"Run: cdf-replicator replay {{route}} --starting-version {mark + 1}",
    )


def lost(what: str) -> RetryableError:
    """Return the error for acknowledged writes that may be lost: the route restarts from the target's watermark."""
    return RetryableError(LOST, f"{what}: acknowledged changes may be lost and are delivered again")


def claimed(what: str, other: str, option: str) -> PermanentError:
    """Return the error for a target that another route fills.

    Args:
        what: The target.
        other: The holder of the target, as ``Claim.other`` names it.
        option: The option that gives a route another target.

    """
    return PermanentError(
        f"{what} is filled by {other}.",
        f"Give one of the two routes another {option}. Or let this route take the target over: cdf-replicator resync {{route}}",
    )


def fenced_off(what: str) -> PermanentError:
    return PermanentError(
        f"{what} is written by another instance, which has taken over.",
        "No action: this instance ends by itself. If it does not, another state path or route has claimed the target; "
        "cdf-replicator resume {route} retries this route, which then names it.",
    )


def certificate_error(who: str, text: str) -> SinkError | None:
    """Classify a failed connection by OpenSSL's text; None if the server's certificate is not the cause.

    A certificate that has expired or is not yet valid is retryable: the route then continues without a command.
    """
    if "certificate verify failed" not in text.lower():
        return None
    if "expired" in text:
        return RetryableError("certificate_expired", f"{who}: its certificate has expired; renew it")
    if "not yet valid" in text:
        wait = "correct the clock of this machine, or wait"
        return RetryableError("certificate_expired", f"{who}: its certificate is not yet valid; {wait}")
    if "mismatch" in text:
        return PermanentError(
            f"{who}: its certificate is made for another name: {text}.",
            f"Use a name it is made for, then {RECONFIGURE}",
        )
    return PermanentError(
        f"{who}: its certificate is not trusted: {text}.", f"Name its authority in CA_CERTS, then {RECONFIGURE}"
    )
