"""Write one Redis entry per key, which readers read by a plain GET or HGETALL.

Every write goes through a script (``connectors.redis.script``) that compares the row's guard with the guard in a second
key. Spark builds the bytes of the commands (``connectors.redis.protocol``). Functions import the modules that need Spark,
Arrow or redis-py, so that a configuration is validated without them.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from connectors.change import Claim, Watermark
from connectors.protocols import Addressed, Capabilities, Repairable, Resyncable, Watermarked
from connectors.redis.keys import KeyNames, as_bytes, key_names
from connectors.redis.settings import RedisOptions, RedisSettings, address, is_cluster, normal_addresses
from connectors.result import Rejected, WriteResult
from connectors.sink import ArrowSink, Mode
from connectors.view import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from connectors.change import RouteSpec
    from connectors.redis.client import Server
    from connectors.redis.cluster import Cluster
    from connectors.result import EntryCount
    from connectors.view import View

VALUE_TYPES: Final = {"json": "string", "hash": "hash"}
WRONG_TYPE: Final = "wrong_type"
TOO_LARGE: Final = "too_large"


class RedisSink(ArrowSink, Resyncable, Watermarked, Addressed, Repairable):
    """A sink that keeps one entry per key."""

    Settings = RedisSettings
    Options = RedisOptions
    mode: ClassVar[Mode] = "upsert"
    capabilities = Capabilities(
        rejection_codes=(WRONG_TYPE, TOO_LARGE), deleted_rows=False, fencing=True, prefix_targets=True
    )
    settings: RedisSettings

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings)
        self._connection: Server | Cluster | None = None
        self._server: Any = None
        self._names: KeyNames | None = None
        self._kept: tuple[str, ...] = ()

    @property
    def endpoint(self) -> str:
        return address(self.settings.url.get_secret_value())

    def target(self, route: RouteSpec) -> str:
        return f"redis {self.endpoint} {_names(route).prefix}"

    def places(self, route: RouteSpec) -> frozenset[str]:
        places, prefix = normal_addresses(self.settings.url.get_secret_value()), _names(route).prefix
        return frozenset(f"redis {place} {prefix}" for place in places)

    def check(self) -> None:
        with self._classified():
            self._connected().check()

    def read_claim(self, route: RouteSpec) -> Claim | None:
        with self._classified():
            self._server = self._connected().identity()
            owner, epoch, mark = self._connected().read_claim(_names(route))
        if owner is None or epoch is None:
            return None
        filled_by, _, name = as_bytes(owner).decode().partition(":")
        reached = None if mark is None else Watermark.parse(as_bytes(mark).decode())
        older = route.watermark is not None and (reached is None or not reached.reaches(route.watermark))
        claim = Claim(filled_by, int(epoch), reached, restored=older, route=name)
        return replace(claim, txn_version=reached.txn_version) if reached is not None and claim.is_of(route) else claim

    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:  # noqa: ARG002 - Redis has no schema
        from connectors.redis.client import identity_of

        with self._classified():
            self._connected().claim(_names(route), _holder(route), route.epoch, route.fence)
            infos = self._connected().infos()
        if any(identity_of(info) is None for info in infos):
            unseen = "a restart or fail-over that loses the newest writes may remain undetected"
            return [
                f"INFO of Redis at {self.endpoint} does not show the server's ids: {unseen}. Grant +info to the user."
            ]
        policies = (info.get("maxmemory_policy", "noeviction") for info in infos if info.get("maxmemory"))
        policy = next((policy for policy in policies if policy != "noeviction"), None)
        if policy is None:
            return []
        effect = "rows would be missing, or an evicted tombstone would let an older row return"
        return [
            f"Redis at {self.endpoint} may evict entries (maxmemory-policy {policy}): {effect}. Set it to noeviction."
        ]

    def lost_acknowledged_writes(self) -> bool:
        """Return whether the server has another process or data set than at the acknowledged writes.

        A crash may lose the writes since Redis last wrote to disk, and a fail-over those that the replica lacks.
        """
        with self._classified():
            now = self._connected().identity()
        if now is not None and self._server is not None and not now.goes_on_from(self._server):
            return True
        self._server = now
        return False

    def render(self, schema: StructType, route: RouteSpec) -> list[Column]:
        from connectors.redis import protocol

        keys = protocol.keys_column(_names(route).value_column())
        return [keys, *protocol.argument_columns(schema, self.settings.layout)]

    def open(self, route: RouteSpec) -> None:
        with self._classified():
            self._connected().load()
        self._names = _names(route)
        layout, ttl = VALUE_TYPES[self.settings.layout], str(self.settings.ttl_seconds or 0)
        self._kept = (*claim_arguments(route), layout, ttl, str(self.settings.tombstone_seconds))

    def save_watermark(self, route: RouteSpec, watermark: Watermark) -> None:
        with self._classified():
            self._connected().mark(_names(route), claim_arguments(route), str(watermark), self._server)

    def write(self, chunk: pa.RecordBatch) -> WriteResult:
        from connectors.redis import protocol

        if not chunk.num_rows:
            return WriteResult()
        if large := protocol.oversized(chunk, self.settings.max_value_bytes):
            return self._write_without(large, chunk)
        assert self._names is not None, "open comes first"
        with self._classified():
            answers, sent = self._connected().write(chunk, self._names, self._kept)
        stale, noop, foreign = (
            sorted(rows[row] for rows, reply in answers for row in reply[kind]) for kind in range(3)
        )
        return WriteResult(
            stale=stale,
            noop=noop,
            rejected=[
                Rejected(row, WRONG_TYPE, f"its Redis key holds {_foreign(self.settings.layout)}") for row in foreign
            ],
            sent_bytes=sent,
        )

    def _write_without(self, large: list[int], chunk: pa.RecordBatch) -> WriteResult:
        """Write the other rows and reject these, since Redis closes the connection of a client that sends a larger argument."""
        import pyarrow as pa

        rest = sorted(set(range(chunk.num_rows)) - set(large))
        result = self.write(chunk.take(pa.array(rest, pa.int64())))
        reason = f"larger than {self.settings.max_value_bytes} bytes (MAX_VALUE_BYTES)"
        return WriteResult(
            stale=[rest[row] for row in result.stale],
            noop=[rest[row] for row in result.noop],
            rejected=[
                *(replace(entry, position=rest[entry.position]) for entry in result.rejected),
                *(Rejected(row, TOO_LARGE, reason) for row in large),
            ],
            sent_bytes=result.sent_bytes,
        )

    def count_entries(self, route: RouteSpec, below_guard: int) -> EntryCount:
        from connectors.redis import orphans

        value_type = VALUE_TYPES[self.settings.layout]
        with self._classified():
            return orphans.count(self._connected(), _names(route), below_guard, value_type)

    def delete_orphans(self, route: RouteSpec, below_guard: int) -> int:
        from connectors.redis import orphans

        value_type, seconds = VALUE_TYPES[self.settings.layout], self.settings.tombstone_seconds
        with self._classified():
            return orphans.sweep(
                self._connected(), _names(route), below_guard, value_type, seconds, claim_arguments(route)
            )

    def identity(self, route: RouteSpec) -> Column:
        return _names(route).value_column()

    def key(self, route: RouteSpec) -> Column:
        return _names(route).key_column(IDENTITY)

    def view(self, route: RouteSpec) -> AbstractContextManager[View]:
        from connectors.redis.view import ValueView

        return nullcontext(ValueView(self.settings, _names(route)))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Server | Cluster:
        from connectors.redis.client import connect

        if self._connection is None:
            self._connection = connect(self.settings, self.endpoint)
        return self._connection

    def _classified(self) -> AbstractContextManager[None]:
        from connectors.redis.errors import classified

        return classified(self.endpoint, cluster=is_cluster(self.settings))


def claim_arguments(route: RouteSpec) -> tuple[str, ...]:
    """Return the values that the scripts compare with the claim: holder, fence and watermark."""
    mark = route.watermark
    batch = ("", "") if mark is None or mark.generation < 0 else (str(mark.generation), str(mark.number))
    return _holder(route), str(route.fence), *batch, "" if mark is None else str(mark.version)


def _holder(route: RouteSpec) -> str:
    """Return the claim's text for the holder of the target: state path and route."""
    return f"{route.owner}:{route.name}"


def _names(route: RouteSpec) -> KeyNames:
    template = route.options.key_template if isinstance(route.options, RedisOptions) else None
    return key_names(route, template)


def _foreign(layout: str) -> str:
    return f"something other than a {VALUE_TYPES[layout]}, which this service did not write"
