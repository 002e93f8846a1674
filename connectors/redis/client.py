"""Connect to Redis by redis-py without its retries, and send commands that are already bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError
from redis.retry import Retry

from connectors.errors import PermanentError, RetryableError
from connectors.redis import script
from connectors.redis.errors import cluster_unsupported

if TYPE_CHECKING:
    from connectors.redis.settings import RedisSettings


def connect(settings: RedisSettings, server: str) -> redis.Redis:
    """Return a client that does not retry, since ``cdf_replicator.delivery`` has the retry policy."""
    options: dict[str, Any] = {
        "socket_timeout": settings.timeout_seconds,
        "socket_connect_timeout": settings.timeout_seconds,
        "retry": Retry(NoBackoff(), 0),
    }
    if settings.username is not None:
        options["username"] = settings.username
    if settings.password is not None:
        options["password"] = settings.password.get_secret_value()
    if settings.ca_certs is not None:
        options["ssl_ca_certs"] = settings.ca_certs
    try:
        return redis.Redis.from_url(settings.url.get_secret_value(), **options)
    except ValueError as error:  # the text names the option, not its value
        raise PermanentError(
            f"The url of Redis at {server}: {error}", "Correct the url: redis-py documents its options."
        ) from None


def check(client: redis.Redis, server: str) -> None:
    """Check that the server is reachable, lets the user run scripts, and is a master without cluster mode."""
    client.ping()
    client.eval("return 1", 0)
    info = info_of(client)
    if info.get("cluster_enabled"):
        raise cluster_unsupported(server)
    if info.get("role") == "slave":
        raise RetryableError("read_only", f"{server} is a replica; writes need its master")


def info_of(client: redis.Redis) -> dict[str, Any]:
    """Return the server's INFO; empty if the user may not read it."""
    try:
        return dict(client.info())
    except NoPermissionError:
        return {}


@dataclass(frozen=True, slots=True)
class Identity:
    """A server process and its data set. A fail-over changes the replication id. A restart changes both ids."""

    run_id: str
    replication_id: str
    offset: int

    def goes_on_from(self, former: Identity) -> bool:
        """Return whether the server still holds every write that it acknowledged at ``former``."""
        same = (self.run_id, self.replication_id) == (former.run_id, former.replication_id)
        return same and self.offset >= former.offset


def identity_of(client: redis.Redis) -> Identity | None:
    """Return the server's identity; None if the user may not read INFO."""
    info = info_of(client)
    if not info:
        return None
    return Identity(info["run_id"], info["master_replid"], int(info["master_repl_offset"]))


def pipeline(client: redis.Redis, commands: list[bytes]) -> list[Any]:
    """Send all commands and then read all replies, over one connection; load the script again if the server lost it."""
    pool = client.connection_pool
    connection: Any = pool.get_connection()
    try:
        replies = _exchange(connection, commands)
        lost = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if lost:
            connection.send_command("SCRIPT", "LOAD", script.WRITE)
            connection.read_response()
            for at, reply in zip(lost, _exchange(connection, [commands[at] for at in lost]), strict=True):
                replies[at] = reply
        _raise_first(replies)
    except BaseException:
        # Unread replies may remain, or the server may have become a replica. A new connection has neither problem.
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
    return replies


def _exchange(connection: Any, commands: list[bytes]) -> list[Any]:
    for command in commands:
        connection.send_packed_command([command], check_health=False)
    return [_reply(connection) for _ in commands]


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _raise_first(replies: list[Any]) -> None:
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply
