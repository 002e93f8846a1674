"""RedisSink: one entry per key, read with a plain GET or HGETALL.

Every write goes through one script (``connectors.redis.script``) that compares the row's guard with the one kept in a
companion key. Rows reach the server as bytes that Spark built (``connectors.redis.resp``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError
from redis.retry import Retry

from connectors.change import Claim
from connectors.errors import RetryableError
from connectors.redis import resp, script
from connectors.redis.errors import classified, cluster_unsupported
from connectors.redis.keys import KeyNames, key_names, value_of
from connectors.redis.settings import RedisOptions, RedisSettings, parse_url
from connectors.result import Rejected, WriteResult
from connectors.sink import ArrowSink, Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from connectors.change import RouteSpec

SCAN_PAGE: Final = 500
VALUE_TYPES: Final = {"json": "string", "hash": "hash"}
WRONG_TYPE: Final = "wrong_type"


class RedisSink(ArrowSink):
    Settings = RedisSettings
    Options = RedisOptions
    mode: ClassVar[Mode] = "upsert"
    targets_are_prefixes = True
    settings: RedisSettings

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings)
        self._client: redis.Redis | None = None

    @property
    def server(self) -> str:
        """Where the data is, without credentials; the same with and without TLS."""
        parts = parse_url(self.settings.url.get_secret_value())
        place = parts.get("path") or f"{parts.get('host', 'localhost')}:{parts.get('port', 6379)}"
        return f"{place}/{parts.get('db', 0)}"

    def target(self, route: RouteSpec) -> str:
        return f"redis {self.server} {_names(route).prefix}"

    def check(self) -> None:
        with classified(self.server):
            client = self._connected()
            client.ping()
            client.eval("return 1", 0)
            info = _info(client)
        if info.get("cluster_enabled"):
            raise cluster_unsupported(self.server)
        if info.get("role") == "slave":
            raise RetryableError("read_only", f"{self.server} is a replica; writes need its master")

    def claim(self, route: RouteSpec) -> Claim | None:
        with classified(self.server):
            owner, epoch = self._connected().hmget(_names(route).claim, ["owner", "epoch"])
        return None if owner is None or epoch is None else Claim(_bytes(owner).decode(), int(epoch))

    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:  # noqa: ARG002 - Redis has no schema
        with classified(self.server):
            client = self._connected()
            client.hset(_names(route).claim, mapping={"owner": route.owner, "epoch": route.epoch})
            info = _info(client)
        policy = info.get("maxmemory_policy", "noeviction")
        if not info.get("maxmemory") or policy == "noeviction":
            return []
        effect = "rows would go missing, or a forgotten delete let an older row return"
        return [
            f"Redis at {self.server} may evict entries (maxmemory-policy {policy}): {effect}. Set it to noeviction."
        ]

    def render(self, schema: StructType, route: RouteSpec) -> list[Column]:
        keys = resp.keys_column(_names(route).value_column())
        return [keys, *resp.argument_columns(schema, self.settings.layout)]

    def open(self, route: RouteSpec) -> None:  # noqa: ARG002 - the rendered bytes name the keys
        with classified(self.server):
            self._connected().script_load(script.WRITE)

    def write(self, chunk: pa.RecordBatch) -> WriteResult:
        if not chunk.num_rows:
            return WriteResult()
        kept = (
            VALUE_TYPES[self.settings.layout],
            str(self.settings.ttl_seconds or 0),
            str(self.settings.tombstone_seconds),
        )
        calls = list(resp.calls(chunk, ("EVALSHA", script.WRITE_SHA), kept))
        with classified(self.server):
            replies = self._call([command for _, command in calls])
        stale, noop, foreign = (
            [start + row for (start, _), reply in zip(calls, replies, strict=True) for row in reply[kind]]
            for kind in range(3)
        )
        return WriteResult(
            stale=stale,
            noop=noop,
            rejected=[
                Rejected(row, WRONG_TYPE, f"its Redis key holds {_foreign(self.settings.layout)}") for row in foreign
            ],
            sent_bytes=sum(len(command) for _, command in calls),
        )

    def sweep(self, route: RouteSpec, below_guard: int) -> int:
        names, removed = _names(route), 0
        # One below: every change of the new epoch still wins over the tombstone, every older one loses to it.
        guards = [f"{guard:0{resp.GUARD_DIGITS}d}" for guard in (below_guard, below_guard - 1)]
        arguments = (guards[0], f"{guards[1]}d", self.settings.tombstone_seconds)
        with classified(self.server):
            sweep = self._connected().register_script(script.SWEEP)
            cursor = -1
            while cursor != 0:
                cursor, found = self._connected().scan(max(cursor, 0), match=names.guard_pattern, count=SCAN_PAGE)
                if found:
                    removed += sweep(
                        keys=[key for guard in found for key in (value_of(_bytes(guard)), guard)], args=arguments
                    )
        return removed

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> redis.Redis:
        if self._client is None:
            self._client = _client(self.settings)
        return self._client

    def _call(self, commands: list[bytes]) -> list[Any]:
        """Send all the commands, then read all the replies, over one connection; load the script if it was lost."""
        pool = self._connected().connection_pool
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


def _client(settings: RedisSettings) -> redis.Redis:
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
    return redis.Redis.from_url(settings.url.get_secret_value(), **options)


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


def _bytes(reply: bytes | str) -> bytes:
    """A reply as it came, or as ``decode_responses=true`` in the url has turned it."""
    return reply.encode() if isinstance(reply, str) else reply


def _info(client: redis.Redis) -> dict[str, Any]:
    """What the server tells of itself; nothing where the user may not ask."""
    try:
        return dict(client.info())
    except NoPermissionError:
        return {}


def _names(route: RouteSpec) -> KeyNames:
    template = route.options.key_template if isinstance(route.options, RedisOptions) else None
    return key_names(route, template)


def _foreign(layout: str) -> str:
    return f"something other than a {VALUE_TYPES[layout]}, which this service did not write"
