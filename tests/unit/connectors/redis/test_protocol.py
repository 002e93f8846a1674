"""Tests of commands cut out of Arrow memory, with every offset of the chunk and width of offsets."""

import numpy as np
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


CLAIMS = pa.array([bulk(f"claim of {slot}").encode() for slot in range(16_384)], pa.binary())
NODES = np.arange(16_384) // 8192


def keyed(keys, kind):
    rows = [[bulk(key) + bulk(f"guard of {key}") for key in keys], [bulk(key) * 2 for key in keys], [2] * len(keys)]
    columns = [pa.array(values, dtype) for values, dtype in zip(rows, (kind, kind, pa.int32()), strict=True)]
    return pa.RecordBatch.from_arrays(columns, [KEYS, ARGUMENTS, COUNT])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_slots_are_those_of_redis(kind):
    keys = ["", "a", "bc", "é" * 50, "orders:12345678", *map(str, range(1000))]
    keyed_rows = keyed(["left out", *keys], kind).slice(1)
    assert protocol.slots_of(keyed_rows.column(KEYS)).tolist() == [key_slot(key.encode()) for key in keys]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_commands_of_a_node_have_its_rows_in_order_of_slots(kind):
    keys = [f"k{number}" for number in range(250)]
    chunk = keyed(["left out", *keys], kind).slice(1)
    seen = []
    for slot, positions, command in protocol.encode_nodes(chunk, HEAD, CLAIMS, NODES, FIRST):
        slots = [key_slot(keys[row].encode()) for row in positions]
        assert slots == sorted(slots)
        assert slots[0] == slot
        assert len({NODES[slot] for slot in slots}) == 1
        claims = [f"claim of {slot}" for slot in slots]
        names = [word for row in positions for word in (keys[row], f"guard of {keys[row]}")]
        arguments = [keys[row] for row in positions for _ in range(2)]
        assert words(*command) == [*HEAD, "1", claims[0], *FIRST, str(len(slots)), *claims, *names, *arguments]
        seen += positions
        assert len(positions) <= 100
    assert sorted(seen) == list(range(250))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_commands_of_a_slot_have_its_rows(kind):
    chunk = keyed(["a", "b", "c", "a"], kind)
    made = {
        slot: (positions, words(*command))
        for slot, positions, command in protocol.encode_slots(chunk, HEAD, CLAIMS, FIRST)
    }
    assert sorted(row for positions, _ in made.values() for row in positions) == [0, 1, 2, 3]
    slot = key_slot(b"a")
    names = ["a", "guard of a"] * 2
    assert made[slot] == ([0, 3], [*HEAD, "5", f"claim of {slot}", *names, *FIRST, *("a" * 4)])


def test_many_rows_of_one_slot_become_several_commands():
    made = list(protocol.encode_slots(keyed(["k"] * 1000, pa.string()), HEAD, CLAIMS, FIRST))
    assert [len(positions) for _, positions, _ in made] == [400, 400, 200]
