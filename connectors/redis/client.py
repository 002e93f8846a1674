"""The client of redis-py: one attempt each time, and commands that are bytes already."""

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
    """A client that tries once: waiting is the business of ``cdf_replicator.delivery``."""
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
    except ValueError as error:  # it names the option, not what was given
        raise PermanentError(
            f"The url of Redis at {server}: {error}", "See redis-py for what a url may hold."
        ) from None


def check(client: redis.Redis, server: str) -> None:
    """Reachable, allowed to run scripts, and a master of its own."""
    client.ping()
    client.eval("return 1", 0)
    info = info_of(client)
    if info.get("cluster_enabled"):
        raise cluster_unsupported(server)
    if info.get("role") == "slave":
        raise RetryableError("read_only", f"{server} is a replica; writes need its master")


def info_of(client: redis.Redis) -> dict[str, Any]:
    """What the server tells of itself; nothing where the user may not ask."""
    try:
        return dict(client.info())
    except NoPermissionError:
        return {}


@dataclass(frozen=True, slots=True)
class Identity:
    """A process and the data set it serves: a fail-over and back changes the replication id, a restart both."""

    run_id: str
    replication_id: str
    offset: int

    def goes_on_from(self, former: Identity) -> bool:
        """Return whether nothing that was acknowledged at ``former`` can be gone."""
        same = (self.run_id, self.replication_id) == (former.run_id, former.replication_id)
        return same and self.offset >= former.offset


def identity_of(client: redis.Redis) -> Identity | None:
    """Return None where the user may not read it."""
    info = info_of(client)
    if not info:
        return None
    return Identity(info["run_id"], info["master_replid"], int(info["master_repl_offset"]))


def call(client: redis.Redis, commands: list[bytes]) -> list[Any]:
    """Send all the commands, then read all the replies, over one connection; load the script if it was lost."""
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
        # Replies may be unread, or the server may have turned into a replica: a fresh connection knows neither.
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
