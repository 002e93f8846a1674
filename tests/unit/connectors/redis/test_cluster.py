"""Which keys a command to a cluster may have."""

from redis.crc import key_slot

from connectors.redis.cluster import Cluster
from connectors.redis.keys import KeyNames, guard_of_value

NAMES = KeyNames((("orders:", 0),), whole=True)


def test_values_are_beside_their_guards_unless_those_have_another_slot():
    cluster = object.__new__(Cluster)  # without nodes
    slot = key_slot(b"c1")
    ours = next(key for key in (b"orders:%d" % n for n in range(300_000)) if key_slot(key) == slot)
    values = [b"orders:{c1}:a", ours, b"orders:{c1}:b", b"orders:7", b"orders:{", b"orders:}"]
    parts = cluster.split_pairs(NAMES, [key for value in values for key in (value, guard_of_value(value))])
    for claim, part in parts:
        assert {key_slot(key) for key in part} == {key_slot(claim.encode())}
        assert part[1::2] == [guard_of_value(value) for value in part[::2]] or len(part) == 1
    assert sorted(part[0] for _, part in parts if len(part) == 1) == [b"orders:{c1}:a", b"orders:{c1}:b", b"orders:}"]
    assert sorted(value for _, part in parts for value in part[::2]) == sorted(values)
