"""Read the values of a route while they change: each value together with its guard."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from connectors.change import GUARD, ROW
from connectors.redis.client import connect, own_connection, packed
from connectors.redis.errors import classified
from connectors.redis.keys import guard_of_value, is_internal
from connectors.redis.script import GUARD_DIGITS
from connectors.redis.settings import address, is_cluster
from connectors.view import BODY, FIRST_PAGE, IDENTITY, ScannedView, next_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import redis
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from connectors.redis.client import Server
    from connectors.redis.cluster import Cluster
    from connectors.redis.keys import KeyNames
    from connectors.redis.settings import RedisSettings

SCAN_PAGE: Final = 1000
"""Keys that a SCAN inspects, about half of which are guards. The server needs about half a millisecond for them."""
MOST_ROWS: Final = 1000
"""Lua passes at most 8000 values to a command, and a longer MGET would keep the server from other clients."""
GUARD_PATTERN: Final = rf"^\d{{{GUARD_DIGITS}}}$"
HIGHEST_GUARD: Final = b"%d" % (2**63 - 1)

READ_HASHES: Final = """
-- KEYS: for each row the keys of its value and its guard, or one value alone
-- Returns for each row its fields and values, or nil for a key of another type; then the guards
local hashes, guards = {}, {}
for row = 1, #KEYS, 2 do
  local held = redis.pcall('HGETALL', KEYS[row])
  hashes[#hashes + 1] = not held.err and held
  guards[#guards + 1] = KEYS[row + 1]
end
return {hashes, #guards > 0 and redis.call('MGET', unpack(guards)) or {false}}
"""


@dataclass(frozen=True, slots=True)
class ValueView(ScannedView):
    """The values of a route. SCAN may return a key twice, and misses no key that exists from its start to its end.

    Redis has no view of one moment, and SCAN has no parts, so that one task reads all values.
    """

    consistent: ClassVar[bool] = False
    settings: RedisSettings
    names: KeyNames
    parts: int = 1

    @property
    def expires(self) -> bool:
        return self.settings.ttl_seconds is not None

    def leaves_entry(self, schema: StructType) -> Column | None:
        """Return the condition of a row that is not of nulls alone in the layout ``hash``: others have no entry there."""
        if self.settings.layout != "hash":
            return None
        from pyspark.sql import functions as F  # noqa: N812

        return F.exists(F.array(*(F.col(ROW).getField(name).isNotNull() for name in schema.names)), lambda each: each)

    def scan(self, part: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - there is one part
        server = address(self.settings.url.get_secret_value())
        with (
            classified(server, cluster=is_cluster(self.settings)),
            closing(connect(self.settings, server)) as connection,
        ):
            for client in connection.masters():
                with own_connection(client) as wire:
                    yield from self._batches(connection, wire, value_pages(client, self.names))

    def _batches(
        self, connection: Server | Cluster, wire: Any, pages: Iterator[list[bytes]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the entries of a master, ``PAGE_BYTES`` at once, about, and at most ``MOST_ROWS``.

        A batch is built while the server reads the next values, and while it scans for the keys of the next page.
        """
        former, rows = None, FIRST_PAGE
        for page in pages:
            left = page
            while left:
                parts = [part for _, part in connection.split_pairs(self.names, left[: 2 * rows])]
                left = left[2 * rows :]
                wire.send_packed_command([self._command(part) for part in parts], check_health=False)
                if former:
                    batch = self._batch(*former)
                    rows = next_page(max(batch.num_rows, 1), batch.nbytes, MOST_ROWS)
                    yield batch
                replies = [wire.read_response(disable_decoding=True) for _ in parts]
                former = parts, replies, self._gone(wire, parts, replies)
        if former:
            yield self._batch(*former)

    def _command(self, keys: list[bytes]) -> bytes:
        """Return the command that reads values and guards. No write interrupts it."""
        if self.settings.layout == "hash":
            return packed([b"EVAL", READ_HASHES.encode(), b"%d" % len(keys), *keys])
        return packed([b"MGET", *keys])

    def _gone(self, wire: Any, parts: list[list[bytes]], replies: list[Any]) -> set[bytes]:
        """Return the keys that SCAN named and that held nothing when they were read: they have expired, or were deleted."""
        values = (value for part in parts for value in part[::2])
        if self.settings.layout == "hash":
            held = (held for hashes, _ in replies for held in hashes)
            return {value for value, fields in zip(values, held, strict=True) if fields == []}
        bodies = [reply for found in replies for reply in found[::2]]
        if None not in bodies:
            return set()
        absent = [value for value, body in zip(values, bodies, strict=True) if body is None]
        # MGET returns nil for a key of another type too, and a text of now was absent then
        wire.send_packed_command([packed([b"TYPE", value]) for value in absent], check_health=False)
        return {value for value in absent if wire.read_response(disable_decoding=True) in (b"none", b"string")}

    def _batch(self, parts: list[list[bytes]], replies: list[Any], gone: set[bytes]) -> pa.RecordBatch:
        if self.settings.layout == "hash":
            bodies = [_object(held) for hashes, _ in replies for held in hashes]
            guards = [guard for _, found in replies for guard in found]
        else:
            bodies = [reply for found in replies for reply in found[::2]]
            guards = [reply for found in replies for reply in found[1::2] or [None]]
        values = [value for part in parts for value in part[::2]]
        columns = [_texts(values, "backslashreplace"), _guards(guards), _texts(bodies, "replace")]
        batch = pa.RecordBatch.from_arrays(columns, [IDENTITY, GUARD, BODY])
        return batch.filter(pa.array([value not in gone for value in values])) if gone else batch

    def read(self, schema: StructType) -> Column:
        if self.settings.layout == "hash":
            return _parsed_fields(schema)
        from connectors.rendering import parsed_row

        return parsed_row(BODY, schema)


def value_pages(client: redis.Redis, names: KeyNames) -> Iterator[list[bytes]]:
    """Yield pages of the keys of existing values, each followed by the key of its guard."""
    for page in key_pages(client, names.value_pattern):
        values = [value for value in page if not is_internal(value)]
        if values:
            yield [key for value in values for key in (value, guard_of_value(value))]


def key_pages(client: redis.Redis, pattern: str) -> Iterator[list[bytes]]:
    """Yield pages of existing keys, without duplicates in a page. SCAN may return a key more than once."""
    with own_connection(client) as wire:
        _scan(wire, b"0", pattern)
        more = True
        while more:
            cursor, found = wire.read_response(disable_decoding=True)
            more = cursor != b"0"
            if more:  # the server scans on while the caller works on this page
                _scan(wire, cursor, pattern)
            if found:
                yield list(dict.fromkeys(found))


def _scan(wire: Any, cursor: bytes, pattern: str) -> None:
    command = packed([b"SCAN", cursor, b"MATCH", pattern.encode(), b"COUNT", b"%d" % SCAN_PAGE])
    wire.send_packed_command([command], check_health=False)


def _object(held: list[bytes] | None) -> bytes | None:
    """Return the JSON object of the fields and values of a hash, which alternate."""
    if held is None:
        return None
    texts = [word.decode(errors="replace") for word in held]
    return orjson.dumps(dict(zip(texts[::2], texts[1::2], strict=True)))


def _texts(replies: Sequence[bytes | None], errors: str) -> pa.Array:
    """Return the replies as texts; ``errors`` names how ``bytes.decode`` replaces what is no UTF-8."""
    try:
        return pa.array(replies, pa.string())
    except pa.ArrowInvalid:
        return pa.array([reply and reply.decode(errors=errors) for reply in replies], pa.string())


def _guards(replies: Sequence[bytes | None]) -> pa.Array:
    """Return the guards as numbers, null where there is none."""
    texts = pa.array(replies, pa.binary())
    valid = pc.and_(pc.match_substring_regex(texts, GUARD_PATTERN), pc.less_equal(texts, HIGHEST_GUARD))
    return pc.if_else(valid, texts, None).cast(pa.string()).cast(pa.int64())


def _parsed_fields(schema: StructType) -> Column:
    """Return the row of an object of texts, each parsed by the type of its column: the inverse of ``text_of``."""
    from pyspark.sql import functions as F  # noqa: N812

    from connectors.rendering import parsed_text

    fields = F.from_json(F.col(BODY), "map<string, string>")
    columns = [parsed_text(fields.getItem(field.name), field.dataType).alias(field.name) for field in schema.fields]
    return F.when(fields.isNotNull(), F.struct(*columns))
