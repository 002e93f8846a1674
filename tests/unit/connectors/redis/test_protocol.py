"""Tests of commands cut out of Arrow memory, with every offset of the chunk and width of offsets."""

import pyarrow as pa
import pytest
from redis.crc import key_slot

from connectors.redis import protocol
from connectors.redis.protocol import ARGUMENTS, COUNT, KEYS, bulk

HEAD, KEY, FIRST = ("EVALSHA", "abc"), "claim", ("string", "0", "60")


def chunk_of(rows, kind, count=3):
    keys = [bulk(f"k{row}é") + bulk(f"guard of k{row}") for row in range(rows)]
    arguments = ["".join(bulk(f"{row}.{number}") for number in range(count)) for row in range(rows)]
    columns = [pa.array(keys, kind), pa.array(arguments, kind), pa.array([count] * rows, pa.int32())]
    return pa.RecordBatch.from_arrays(columns, [KEYS, ARGUMENTS, COUNT])


def words(*command):
    """The arguments of one RESP command of several parts, read by the letter."""
    count, _, rest = b"".join(command).partition(b"\r\n")
    found = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size[1:])
        found.append(rest[:length].decode())
        assert rest[length : length + 2] == b"\r\n"
        rest = rest[length + 2 :]
    assert count == b"*%d" % len(found)
    return found


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_slice_becomes_one_command_of_its_rows(kind):
    chunk = chunk_of(10, kind).slice(4, 3).slice(1)
    ((start, command),) = protocol.encode_commands(chunk, HEAD, KEY, FIRST)
    keys = [word for row in (5, 6) for word in (f"k{row}é", f"guard of k{row}")]
    assert start == 0
    assert words(*command) == [*HEAD, "5", KEY, *keys, *FIRST, *(f"{row}.{n}" for row in (5, 6) for n in range(3))]


def test_many_rows_become_several_commands():
    made = list(protocol.encode_commands(chunk_of(1000, pa.string()), HEAD, KEY, FIRST))
    assert [start for start, _ in made] == [0, 400, 800]
    assert words(*made[2][1])[4] == "k800é"
    assert sum(len(words(*command)) - 7 for _, command in made) == 1000 * 5


def test_arguments_of_a_command_are_not_copied():
    chunk = chunk_of(10, pa.string())
    whole = chunk.column(ARGUMENTS).buffers()[2]
    ((_, (_, arguments)),) = protocol.encode_commands(chunk.slice(4), HEAD, KEY, FIRST)
    assert whole.address < arguments.address
    assert arguments.address + arguments.size == whole.address + len("".join(chunk.column(ARGUMENTS).to_pylist()))


def test_larger_rows_share_a_command_with_fewer_rows():
    made = list(protocol.encode_commands(chunk_of(10, pa.string(), count=5000), HEAD, KEY, FIRST))
    assert [start for start, _ in made] == [0, 4, 8]


def test_row_of_too_many_arguments_is_sent_alone():
    made = list(protocol.encode_commands(chunk_of(2, pa.string(), count=30_000), HEAD, KEY, FIRST))
    assert [start for start, _ in made] == [0, 1]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_rows_with_too_large_arguments_are_returned_by_position(kind):
    texts = ["x" * size for size in (9, 10, 11, 2000, 10)]
    columns = [pa.array(["k"] * 5, kind), pa.array(texts, kind), pa.array([1] * 5, pa.int32())]
    chunk = pa.RecordBatch.from_arrays(columns, [KEYS, ARGUMENTS, COUNT])
    assert protocol.oversized(chunk, 10) == [2, 3]
    assert protocol.oversized(chunk, 1999) == [3]
    assert protocol.oversized(chunk, 2000) == []
    assert protocol.oversized(chunk, 1_000_000) == []


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_commands_of_a_cluster_have_the_rows_of_one_slot(kind):
    claims = [bulk(f"claim of {slot}").encode() for slot in range(16_384)]
    keys = ["a", "b", "a{not used}", "c"]
    rows = [[bulk(key) + bulk("guard") for key in keys], [bulk(str(row)) * 2 for row in range(4)], [2] * 4]
    columns = [pa.array(values, dtype) for values, dtype in zip(rows, (kind, kind, pa.int32()), strict=True)]
    chunk = pa.RecordBatch.from_arrays(columns, [KEYS, ARGUMENTS, COUNT])
    made = {
        slot: (positions, words(command))
        for slot, positions, command in protocol.encode_slots(chunk, HEAD, claims, FIRST)
    }
    assert sorted(row for positions, _ in made.values() for row in positions) == [0, 1, 2, 3]
    slot = key_slot(b"a")
    assert made[slot] == ([0], [*HEAD, "3", f"claim of {slot}", "a", "guard", *FIRST, "0", "0"])


def test_many_rows_of_one_slot_become_several_commands():
    made = list(protocol.encode_slots(same_slot(1000), HEAD, [b""] * 16_384, FIRST))
    assert [len(positions) for _, positions, _ in made] == [400, 400, 200]


def same_slot(rows):
    columns = [pa.array([bulk("k") + bulk("g")] * rows), pa.array([bulk("x")] * rows), pa.array([1] * rows, pa.int32())]
    return pa.RecordBatch.from_arrays(columns, [KEYS, ARGUMENTS, COUNT])
