"""Connect to one Redis server by redis-py without its retries, and send commands that are already bytes."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel

from connectors.errors import PermanentError, RetryableError
from connectors.redis import script
from connectors.redis.errors import cluster_node
from connectors.redis.settings import is_cluster, parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from connectors.redis.cluster import Cluster
    from connectors.redis.keys import KeyNames
    from connectors.redis.protocol import Command
    from connectors.redis.settings import RedisSettings

    Answer = tuple[Sequence[int], Any]

_WAITS: Final = ("socket_timeout", "socket_connect_timeout")


class Server:
    """One server, or the master that sentinels name at the moment of each connection.

    ``connectors.redis.cluster.Cluster`` has the same methods, for a cluster.
    """

    def __init__(self, settings: RedisSettings, server: str) -> None:
        self._client = _client(settings, server)
        self._name = server

    def check(self) -> None:
        """Check that the server is reachable, lets the user run scripts, and is a master without cluster mode."""
        self._client.ping()
        self._client.eval("return 1", 0)
        info = info_of(self._client)
        if info.get("cluster_enabled"):
            raise cluster_node(self._name)
        if info.get("role") == "slave":
            raise RetryableError("read_only", f"{self._name} is a replica; writes need its master")

    def infos(self) -> list[dict[str, Any]]:
        """Return INFO of every master, each empty if the user may not read it."""
        return [info_of(self._client)]

    def identity(self) -> Identity | None:
        return identity_of(info_of(self._client))

    def read_claim(self, names: KeyNames) -> list[Any]:
        """Return owner, epoch and watermark of the claim, each None if it is absent."""
        return self._client.hmget(names.claim, ["owner", "epoch", "mark"])

    def claim(self, names: KeyNames, *arguments: Any) -> None:
        self._client.eval(script.CLAIM, 1, names.claim, *arguments)

    def mark(self, names: KeyNames, held: tuple[str, ...], mark: str, known: Identity | None) -> None:
        """Save the watermark if the server is still the one of ``known``."""
        identity = ("", "", "") if known is None else known.arguments()
        self._client.eval(script.MARK, 1, names.claim, *held, mark, *identity)

    def load(self) -> None:
        self._client.script_load(script.WRITE)

    def write(self, chunk: pa.RecordBatch, names: KeyNames, first: tuple[str, ...]) -> tuple[list[Answer], int]:
        """Write the chunk; return the replies, each with the positions of its rows, and the number of sent bytes."""
        from connectors.redis import protocol

        calls = list(protocol.encode_commands(chunk, ("EVALSHA", script.WRITE_SHA), names.claim, first))
        replies = pipeline(self._client, [command for _, command in calls])
        answers: list[Answer] = [
            (range(start, chunk.num_rows), reply) for (start, _), reply in zip(calls, replies, strict=True)
        ]
        return answers, sum(len(part) for _, command in calls for part in command)

    def masters(self) -> Iterator[redis.Redis]:
        """Yield a client of each master. The keys of the route are spread over them."""
        yield self._client

    def split(self, names: KeyNames, keys: list[bytes]) -> list[tuple[str, list[bytes]]]:
        """Return the keys that one command may have, each time with the claim in their slot."""
        return [(names.claim, keys)]

    def split_pairs(self, names: KeyNames, keys: list[bytes]) -> list[tuple[str, list[bytes]]]:
        """Split keys of values, each followed by the key of its guard, as ``split`` does; a value may be alone in its part."""
        return self.split(names, keys)

    def held(self, expected_claim: Sequence[str]) -> tuple[str, ...]:
        """Return the values that scripts compare with the claim of ``split``."""
        return tuple(expected_claim)

    def close(self) -> None:
        self._client.close()


def connect(settings: RedisSettings, server: str) -> Server | Cluster:
    """Return a connection that does not retry, since ``cdf_replicator.delivery`` has the retry policy."""
    from connectors.redis.cluster import Cluster

    return (Cluster if is_cluster(settings) else Server)(settings, server)


def options_of(settings: RedisSettings) -> dict[str, Any]:
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
    return options


@contextmanager
def valid_url(server: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # the text names the option, not its value
        raise PermanentError(
            f"The url of Redis at {server}: {error}", "Correct the url: redis-py documents its options."
        ) from None


def _client(settings: RedisSettings, server: str) -> redis.Redis:
    place, options = parse(settings.url.get_secret_value()), options_of(settings)
    with valid_url(server):
        if place.kind == "server":
            return redis.Redis.from_url(place.plain, **options)
        given = {**options, **redis.connection.parse_url(place.plain)}  # type: ignore[no-untyped-call]
        for part in ("host", "port"):  # of the first sentinel; redis-py leaves out a port that the URL lacks
            given.pop(part, None)
        asking = {name: option for name, option in options.items() if name in {"retry", *_WAITS}}
        sentinels: Any = Sentinel(place.servers, sentinel_kwargs=asking, **given)  # type: ignore[no-untyped-call]
        master: redis.Redis = sentinels.master_for(place.service)
        return master


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

    def arguments(self) -> tuple[str, str, str]:
        return self.run_id, self.replication_id, str(self.offset)


def identity_of(info: dict[str, Any]) -> Identity | None:
    """Return the identity in a server's INFO; None if the user may not read INFO, or the server leaves a part out."""
    run, data, offset = (info.get(name) for name in ("run_id", "master_replid", "master_repl_offset"))
    return None if run is None or data is None or offset is None else Identity(str(run), str(data), int(offset))


@contextmanager
def own_connection(client: redis.Redis) -> Iterator[Any]:
    """Hold one connection of the client, and close it at the end, when replies may be unread."""
    connection: Any = client.connection_pool.get_connection()
    try:
        yield connection
    finally:
        connection.disconnect()
        client.connection_pool.release(connection)


def pipeline(client: redis.Redis, commands: Sequence[Command]) -> list[Any]:
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
        raise_first(replies)
    except BaseException:
        # Unread replies may remain, or the server may have become a replica. A new connection has neither problem.
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
    return replies


def _exchange(connection: Any, commands: Sequence[Command]) -> list[Any]:
    for command in commands:
        connection.send_packed_command(command, check_health=False)
    return [read_reply(connection) for _ in commands]


def read_reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def raise_first(replies: list[Any]) -> None:
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply


def bulk(word: bytes) -> bytes:
    """Return a word as a part of a command."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def packed(words: list[bytes]) -> bytes:
    """Return the command of these words."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(bulk, words)))
