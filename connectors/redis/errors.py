"""Classify errors of redis-py, of the server and of the sink's scripts as errors of the sink contract."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from redis import exceptions

from connectors.errors import (
    RECONFIGURE,
    PermanentError,
    RetryableError,
    SinkError,
    certificate_error,
    claimed,
    fenced_off,
    lost,
    target_missing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_CODES: Final = {
    "OOM": "out_of_memory",
    "READONLY": "read_only",
    "LOADING": "unavailable",
    "BUSY": "unavailable",
    "MASTERDOWN": "unavailable",
    "CLUSTERDOWN": "unavailable",
    "TRYAGAIN": "unavailable",
    "NOREPLICAS": "unavailable",
    "MISCONF": "unavailable",
    "UNBLOCKED": "unavailable",
}
_REFUSALS: Final = ("NOAUTH", "NOPERM", "WRONGPASS", "DENIED")
_REFUSED_SCRIPT: Final = ("user executing the script", "ACL failure in script")
"""Texts of Redis and of Valkey for a command in a script that the user may not run."""
_NOT_LOCAL: Final = "non local key"
"""Text for a command in a script whose key the node does not hold."""
_TEXTS: Final = (("max number of clients", "overloaded"), ("cluster is down", "unavailable"))
"""Texts without a code: of a server at ``maxclients``, and for a write of a script while a cluster is down but allows reads."""
_CLUSTER: Final = ("MOVED", "ASK", "CROSSSLOT")

# redis-py removes the code from the text and raises a class for it. Redis 6.2 has the code within the text of a script's error.
_CLASSES: Final = (
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.AskError, "MOVED"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "WRONGPASS"),
    (exceptions.AuthorizationError, "NOAUTH"),
)
_STRANGER: Final = ": the answer is not in Redis' protocol; if this error persists, correct the url"
_AWAY: Final = (
    (exceptions.TimeoutError, "timeout", ""),
    (exceptions.ConnectionError, "unreachable", ""),
    (exceptions.InvalidResponse, "unavailable", _STRANGER),
)
_CLAIM: Final = re.compile(r"\bCDF(GONE|FENCED|CLAIMED|OLDER|OTHER)\b")
_WORD: Final = re.compile(rf"\b({'|'.join([*_CODES, *_REFUSALS, *_CLUSTER])})\b")


@contextmanager
def classified(server: str, *, cluster: bool = False) -> Iterator[None]:
    """Raise an error of redis-py as a ``RetryableError`` or a ``PermanentError``; an unknown error stays unchanged.

    Args:
        server: Address of the server for the text, without credentials.
        cluster: Whether a node of a cluster is expected: a slot that moves is a temporary fault.

    """
    try:
        yield
    except exceptions.RedisError as error:
        if cluster and (isinstance(error, exceptions.AskError) or _NOT_LOCAL in str(error)):  # MOVED too
            raise RetryableError("unavailable", f"{server}: slots moved meanwhile") from error
        raise (_claim_lost(error, server) or classify(error, server)) from error
    except exceptions.RedisClusterException as error:
        raise _without_cluster(error, server) from error


def classify(error: exceptions.RedisError, server: str) -> Exception:
    code = _code(error)
    if reason := _CODES.get(code or "") or next((reason for text, reason in _TEXTS if text in str(error)), None):
        return RetryableError(reason, f"{server}: {error}")
    if code in _CLUSTER:
        return cluster_node(server)
    if code in _REFUSALS or any(text in str(error) for text in _REFUSED_SCRIPT):
        return PermanentError(
            f"Redis at {server} refuses this user: {error}.",
            "Check username and password. An ACL user needs +@read +@write -@dangerous +@scripting +@connection +info (+cluster in a "
            f"cluster), and the key patterns ~<prefix>* and ~cdf:*. Then run: cdf-replicator resume {{route}}. If a setting of the sink changes, {RECONFIGURE}",
        )
    if "DB index" in str(error):
        return PermanentError(f"Redis at {server}: {error}.", "Correct the number of the database in the url.")
    for kind, away, more in _AWAY:
        if isinstance(error, kind):
            refused = certificate_error(f"Redis at {server}", str(error))
            return refused or RetryableError(away, f"{server}: {error}{more}")
    return error


def _claim_lost(error: exceptions.RedisError, server: str) -> SinkError | None:
    """Return the error if a script found no claim, another holder, an older watermark or another server; else None."""
    found = _CLAIM.search(str(error))
    if found is None:
        return None
    what = found[1]
    if what == "GONE":
        return target_missing(f"Redis at {server} no longer holds the route's claim: it was emptied")
    if what == "CLAIMED":
        return claimed(f"the target in Redis at {server}", "another route or state path", "KEY_TEMPLATE")
    if what == "OLDER":
        return lost(f"Redis at {server} was restored from a copy")
    if what == "OTHER":
        return lost(f"Redis at {server} was restarted, or failed over")
    return fenced_off(f"Redis at {server}")


def cluster_node(server: str) -> PermanentError:
    return PermanentError(
        f"Redis at {server} is a node of a cluster.", "Begin the sink's url with redis+cluster:// or rediss+cluster://."
    )


def _without_cluster(error: exceptions.RedisClusterException, server: str) -> SinkError:
    """Return the error for a client that could not read the nodes of a cluster; the cause names the reason."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, exceptions.RedisError):
        cause = cause.__cause__ or cause.__context__
    if "cluster support disabled" in str(cause):
        return PermanentError(
            f"Redis at {server} is not a cluster.", "Begin the sink's url with redis:// or rediss://."
        )
    found = None if cause is None else classify(cause, server)
    return found if isinstance(found, SinkError) else RetryableError("unavailable", f"{server}: {error}")


def _code(error: exceptions.RedisError) -> str | None:
    for kind, code in _CLASSES:
        if isinstance(error, kind):
            return code
    found = _WORD.search(str(error)) if isinstance(error, exceptions.ResponseError) else None
    return found.group(1) if found else None
