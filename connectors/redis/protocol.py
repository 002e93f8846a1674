r"""Build Redis commands: Spark builds each row's part as text in the JVM, and this module slices it from the Arrow buffer.

RESP, the protocol of Redis, writes a command as the number of its arguments, then each as ``$<bytes>\r\n<argument>\r\n``.
A row adds two keys and several arguments to a call of ``connectors.redis.script``. Spark builds the bytes of the keys and
of the arguments. A call is therefore a header and two slices of memory, without Python code per row.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - as in connectors.rendering
from redis.crc import REDIS_CLUSTER_HASH_SLOTS

from connectors.change import GUARD, ROW, is_delete
from connectors.redis.keys import GUARD_HEAD, GUARD_TAIL
from connectors.redis.script import GUARD_DIGITS
from connectors.rendering import json_row, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

KEYS: Final = "redis_keys"
ARGUMENTS: Final = "redis_arguments"
COUNT: Final = "redis_count"

Command: TypeAlias = "tuple[bytes, pa.Buffer]"
"""The two parts of a command, to be sent one after the other."""

KEYS_PER_ROW: Final = 2
ROWS_PER_CALL: Final = 400
"""A call of this size blocks the server for about a millisecond. The throughput is the same from 200 to 500 rows."""
ROWS_PER_NODE_CALL: Final = 100
"""A row of its own slot takes the server longer; 50 and 100 rows take a tenth less processor time for updates than 400."""
ARGUMENTS_PER_CALL: Final = 20_000


def keys_column(value_key: Column) -> Column:
    guard_key = F.concat(F.lit(GUARD_HEAD), value_key, F.lit(GUARD_TAIL))
    return F.concat(_bulk(value_key), _bulk(guard_key)).alias(KEYS)


def argument_columns(schema: StructType, layout: str) -> list[Column]:
    """Return the bytes of a row's arguments, and their number.

    The arguments of an upsert are the guard and the JSON text, or in the layout ``hash`` the guard, the number of fields and
    values, and these. The argument of a delete is the guard with the mark of a tombstone.
    """
    body, count = _hash_fields(schema) if layout == "hash" else (_bulk(json_row(schema)), F.lit(1))
    deleted = is_delete()
    guard = F.lpad(F.col(GUARD).cast("string"), GUARD_DIGITS, "0")
    # The guard makes the text null for a delete. The body is in no branch: Spark would build its text a second time to measure it.
    upsert = F.concat(F.lit(f"${GUARD_DIGITS}\r\n"), F.when(~deleted, guard), F.lit("\r\n"), body)
    delete = F.concat(F.lit(f"${GUARD_DIGITS + 1}\r\n"), guard, F.lit("d\r\n"))
    return [
        F.coalesce(upsert, delete).alias(ARGUMENTS),
        (F.when(deleted, F.lit(0)).otherwise(count) + 1).alias(COUNT),
    ]


def oversized(chunk: pa.RecordBatch, most_bytes: int) -> list[int]:
    """Return the positions of the rows whose arguments have more than ``most_bytes`` bytes."""
    arguments = chunk.column(ARGUMENTS)
    if arguments.nbytes <= most_bytes:
        return []
    positions: list[int] = pc.indices_nonzero(pc.greater(pc.binary_length(arguments), most_bytes)).to_pylist()
    return positions


def encode_commands(
    chunk: pa.RecordBatch, head: tuple[str, ...], key: str, first: tuple[str, ...]
) -> Iterator[tuple[int, Command]]:
    """Yield the commands for a chunk, each with the position of its first row.

    A command is ``head``, the number of keys, ``key``, the keys of the rows, ``first``, the arguments of the rows. The
    arguments are a slice of the chunk, since a copy of large texts costs more than a further call of ``send``.
    """
    keys, arguments, counts = chunk.column(KEYS), chunk.column(ARGUMENTS), chunk.column(COUNT)
    step = max(1, min(ROWS_PER_CALL, ARGUMENTS_PER_CALL // pc.max(counts).as_py()))
    opening = "".join(map(bulk, head))
    closing = "".join(map(bulk, first)).encode()
    for start in range(0, chunk.num_rows, step):
        rows = min(step, chunk.num_rows - start)
        key_count = 1 + rows * KEYS_PER_ROW
        total = len(head) + 1 + key_count + len(first) + pc.sum(counts.slice(start, rows)).as_py()
        header = f"*{total}\r\n{opening}{bulk(str(key_count))}{bulk(key)}".encode()
        yield start, (b"".join((header, _bytes_of(keys, start, rows), closing)), _bytes_of(arguments, start, rows))


def encode_nodes(
    chunk: pa.RecordBatch, head: tuple[str, ...], claims: pa.Array, nodes: np.ndarray, first: tuple[str, ...]
) -> Iterator[tuple[int, list[int], Command]]:
    """Yield the commands for a chunk in a cluster, each for rows of one node: a slot of the node, positions of the rows, command.

    A command has the claim of the first row as its only key, so that the rows may have several slots. ``claims`` has the key of the
    claim for each slot, as bytes of a command, and ``nodes`` the number of the slot's node.
    """
    slots = slots_of(chunk.column(KEYS))
    order = np.lexsort((slots, nodes[slots]))
    slots, positions = slots[order], pa.array(order)
    keys, arguments, counts = (chunk.column(name).take(positions) for name in (KEYS, ARGUMENTS, COUNT))
    names = claims.take(pa.array(slots))
    step = max(1, min(ROWS_PER_NODE_CALL, ARGUMENTS_PER_CALL // pc.max(counts).as_py()))
    opening, closing = ("".join(map(bulk, words)).encode() for words in ((*head, "1"), first))
    ends = [*(np.flatnonzero(np.diff(nodes[slots])) + 1).tolist(), chunk.num_rows]
    for begin, end in zip([0, *ends], ends, strict=False):
        for start in range(begin, end, step):
            rows = min(step, end - start)
            total = len(head) + 3 + len(first) + rows * (1 + KEYS_PER_ROW) + pc.sum(counts.slice(start, rows)).as_py()
            header = b"*%d\r\n%b%b%b%b" % (
                total,
                opening,
                _bytes_of(names, start, 1),
                closing,
                bulk(str(rows)).encode(),
            )
            parts = header, _bytes_of(names, start, rows), _bytes_of(keys, start, rows)
            yield (
                int(slots[start]),
                order[start : start + rows].tolist(),
                (b"".join(parts), _bytes_of(arguments, start, rows)),
            )


def encode_slots(
    chunk: pa.RecordBatch, head: tuple[str, ...], claims: pa.Array, first: tuple[str, ...]
) -> Iterator[tuple[int, list[int], Command]]:
    """Yield the commands for a chunk in a cluster, each for rows of one slot: slot, positions of the rows, command.

    Their keys are those of the command, so that a node answers where a slot moved.
    """
    keys, arguments, counts = (chunk.column(name) for name in (KEYS, ARGUMENTS, COUNT))
    step = max(1, min(ROWS_PER_CALL, ARGUMENTS_PER_CALL // pc.max(counts).as_py()))
    slots: dict[int, list[int]] = defaultdict(list)
    for row, slot in enumerate(slots_of(keys).tolist()):
        slots[slot].append(row)
    opening, closing = ("".join(map(bulk, words)).encode() for words in (head, first))
    for slot, rows in slots.items():
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            key_count = 1 + len(part) * KEYS_PER_ROW
            total = len(head) + 1 + key_count + len(first) + pc.sum(counts.take(part)).as_py()
            parts = [b"*%d\r\n%b%b" % (total, opening, bulk(str(key_count)).encode()), _bytes_of(claims, slot, 1)]
            parts += [_bytes_of(keys, row, 1) for row in part]
            parts.append(closing)
            yield slot, part, (b"".join(parts), b"".join([_bytes_of(arguments, row, 1) for row in part]))


def slots_of(keys: pa.Array) -> np.ndarray:
    """Return the slot of each row: the CRC of its value's key, which has no braces."""
    offsets, values = _memory_of(keys)
    data = np.frombuffer(values, np.uint8)
    at = offsets[:-1] + 1
    lengths = np.zeros_like(at)
    while (digits := data[at] != ord("\r")).any():
        lengths = np.where(digits, lengths * 10 + data[at] - ord("0"), lengths)
        at = at + digits
    ends = at + 2 + lengths
    found = np.zeros(len(keys), np.uint16)
    longest = int(lengths.max(initial=0))
    for left in range(longest + longest % 2, 0, -2):  # zeros before a key do not change its CRC
        high = np.where(left <= lengths, data[ends - left], 0).astype(np.uint16)
        low = np.where(left <= lengths + 1, data[ends - left + 1], 0)
        found = _crc_of_two_bytes()[found ^ (high << 8 | low)]
    return found % REDIS_CLUSTER_HASH_SLOTS


@lru_cache(maxsize=1)
def _crc_of_two_bytes() -> np.ndarray:
    return np.array([crc_hqx(number.to_bytes(2, "big"), 0) for number in range(2**16)], np.uint16)


def bulk(text: str) -> str:
    return f"${len(text.encode())}\r\n{text}\r\n"


def _bulk(text: Column) -> Column:
    return F.concat(F.lit("$"), F.octet_length(text).cast("string"), F.lit("\r\n"), text, F.lit("\r\n"))


def _hash_fields(schema: StructType) -> tuple[Column, Column]:
    """Return the bytes for the columns that are not null (number, fields, values), and the number of these arguments.

    The expressions are flat, since nested expressions would become deep for a wide table.
    """
    parts = []
    for field in schema.fields:
        text = text_of(F.col(ROW).getField(field.name), field.dataType)
        parts.append(F.concat(F.lit(bulk(field.name)), _bulk(text)))
    kept = F.array_compact(F.array(*parts))
    count = F.size(kept) * 2
    return F.concat(_bulk(count.cast("string")), F.array_join(kept, "")), count + 1


def _bytes_of(texts: pa.Array, start: int, rows: int) -> pa.Buffer:
    """Return the bytes of ``rows`` adjacent texts without a copy."""
    offsets, values = _memory_of(texts)
    begin, end = int(offsets[start]), int(offsets[start + rows])
    return values.slice(begin, end - begin)


def _memory_of(texts: pa.Array) -> tuple[np.ndarray, pa.Buffer]:
    """Return the begin of each text and the end of the last one, and the memory that they refer to."""
    wide = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    _, offsets, values = texts.buffers()
    found = np.frombuffer(offsets, np.int64 if wide else np.int32)
    return found[texts.offset : texts.offset + len(texts) + 1], values
