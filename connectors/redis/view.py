"""Read the values of a route while they change: each value together with its guard."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import orjson

from connectors.redis import script
from connectors.redis.keys import guard_of_value, is_internal
from connectors.view import BODY, ScannedView, entry_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    import redis
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from connectors.redis.keys import KeyNames
    from connectors.redis.settings import RedisSettings

SCAN_PAGE: Final = 500

READ_HASHES: Final = """
-- KEYS: for each row the keys of its value and its guard
-- Returns for each row its fields and values, or nil for a key of another type; then the guards
local hashes, guards = {}, {}
for row = 1, #KEYS, 2 do
  local held = redis.pcall('HGETALL', KEYS[row])
  hashes[#hashes + 1] = not held.err and held
  guards[#guards + 1] = KEYS[row + 1]
end
return {hashes, redis.call('MGET', unpack(guards))}
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

    def scan(self, part: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - there is one part
        from connectors.redis.client import connect
        from connectors.redis.errors import classified
        from connectors.redis.settings import address, is_cluster

        server = address(self.settings.url.get_secret_value())
        read = _hashes if self.settings.layout == "hash" else _texts
        with (
            classified(server, cluster=is_cluster(self.settings)),
            closing(connect(self.settings, server)) as connection,
        ):
            for client in connection.masters():
                for page in value_pages(client, self.names):
                    parts = [part for _, part in connection.split(self.names, page)]
                    bodies, guards = read(client, parts)
                    values = (value.decode(errors="backslashreplace") for part in parts for value in part[::2])
                    yield entry_batch(list(values), [_number(guard) for guard in guards], bodies)

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
    cursor = -1
    while cursor != 0:
        cursor, found = client.scan(max(cursor, 0), match=pattern, count=SCAN_PAGE)
        if found:
            yield list(dict.fromkeys(map(as_bytes, found)))


def as_bytes(reply: bytes | str) -> bytes:
    """Return a reply as bytes; with ``decode_responses=true`` in the URL redis-py returns text."""
    return reply.encode() if isinstance(reply, str) else reply


Read = tuple[list["str | None"], list["bytes | str | None"]]


def _texts(client: redis.Redis, parts: list[list[bytes]]) -> Read:
    """Read texts and guards, those of a part by one MGET, which no write interrupts. A key of another type has no text."""
    with client.pipeline(transaction=False) as pipe:
        for keys in parts:
            pipe.mget(keys)
        replies = [reply for found in pipe.execute() for reply in found]
    return [_text(reply) for reply in replies[::2]], replies[1::2]


def _hashes(client: redis.Redis, parts: list[list[bytes]]) -> Read:
    """Read hashes and guards, those of a part in one script, each hash as a JSON object of texts."""
    inspect = client.register_script(READ_HASHES)
    with client.pipeline(transaction=False) as pipe:
        for keys in parts:
            inspect(keys=keys, client=pipe)
        replies = pipe.execute()
    bodies = [_object(held) for hashes, _ in replies for held in hashes]
    return bodies, [guard for _, guards in replies for guard in guards]


def _object(held: list[bytes | str] | None) -> str | None:
    """Return the JSON object of the fields and values of a hash, which alternate."""
    if held is None:
        return None
    texts = [_text(word) for word in held]
    return orjson.dumps(dict(zip(texts[::2], texts[1::2], strict=True))).decode()


def _text(reply: bytes | str | None) -> str | None:
    return reply.decode(errors="replace") if isinstance(reply, bytes) else reply


def _number(guard: bytes | str | None) -> int | None:
    text = b"" if guard is None else as_bytes(guard)
    return int(text) if script.is_guard(text) else None


def _parsed_fields(schema: StructType) -> Column:
    """Return the row of an object of texts, each parsed by the type of its column: the inverse of ``text_of``."""
    from pyspark.sql import functions as F  # noqa: N812

    from connectors.rendering import parsed_text

    fields = F.from_json(F.col(BODY), "map<string, string>")
    columns = [parsed_text(fields.getItem(field.name), field.dataType).alias(field.name) for field in schema.fields]
    return F.when(fields.isNotNull(), F.struct(*columns))
