"""Write to a Redis Cluster: script calls for each node, and a claim in each slot.

The keys of a command may have one slot alone, so ``prepare`` claims every slot, and every call checks the claims of its slots. The
claims move with their slots, and a claim without its rows, or rows without their claim, are detected. The watermark is saved
in several claims of every master, after the rows that it stands for. A promoted replica therefore has the watermark that its
rows have reached, and the target's watermark is the lowest of all claims.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from connectors.change import Watermark
from connectors.errors import RetryableError, lost
from connectors.redis import script
from connectors.redis.client import Identity, bulk, identity_of, info_of, packed
from connectors.redis.keys import as_bytes
from connectors.redis.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import redis

    from connectors.redis.client import Answer
    from connectors.redis.keys import KeyNames
    from connectors.redis.protocol import Command
    from connectors.redis.settings import RedisSettings

MARKED: Final = frozenset(range(0, REDIS_CLUSTER_HASH_SLOTS, 64))
"""Slots whose claims have the watermark, all of them after each micro-batch. The first slot of each master has it too, for a master
that has none of these.

The lowest counts, since a slot moves with its claim: a promoted replica may lack rows and then receive a claim that is newer.
"""


@dataclass(frozen=True, slots=True)
class Identities:
    """The identity of every master, by its address."""

    masters: Mapping[str, Identity]

    def goes_on_from(self, former: Identities) -> bool:
        """Return whether every former master is still one, with the writes that it acknowledged. Others may have joined."""
        return all(
            name in self.masters and self.masters[name].goes_on_from(identity)
            for name, identity in former.masters.items()
        )


class Cluster:
    """The masters of a cluster, with the methods of ``connectors.redis.client.Server``."""

    def __init__(self, settings: RedisSettings, server: str) -> None:
        self._nodes = Nodes(settings, server)
        self._name = server

    def check(self) -> None:
        """Check that every master is reachable and lets the user run scripts."""
        for client in self._nodes.clients():
            client.ping()
            client.eval("return 1", 0)
        self._nodes.views()

    def infos(self) -> list[dict[str, Any]]:
        return [info_of(client) for client in self._nodes.clients()]

    def identity(self) -> Identities | None:
        self._nodes.refresh()
        self._nodes.views()
        found = {node.name: identity_of(info_of(self._nodes.client(node))) for node in self._nodes.masters()}
        known = {name: identity for name, identity in found.items() if identity is not None}
        return Identities(known) if len(known) == len(found) else None

    def read_claim(self, names: KeyNames) -> list[Any]:
        """Return owner, epoch and watermark; no owner if a slot has no claim: the target was emptied, at least in part."""
        owner, epoch = self._call_first(names, (b"HMGET", b"owner", b"epoch"))
        claims = self._call_all(names, (b"HMGET", b"owner", b"epoch", b"mark"), "")
        if owner is None or any(held is None for held, _, _ in claims):
            return [None, None, None]
        marks = {
            slot: Watermark.parse(as_bytes(mark).decode())
            for slot, (*held, mark) in enumerate(claims)
            if held == [owner, epoch] and mark is not None
        }
        if not marks.keys() >= MARKED:
            return [owner, epoch, None]
        reached = [marks[slot] for slot in MARKED] + self._of_small_masters(marks)
        return [owner, epoch, str(min(reached, key=_progress)).encode()]

    def _of_small_masters(self, marks: Mapping[int, Watermark]) -> list[Watermark]:
        """Return the watermark of each master that has no slot of ``MARKED``, if it has one.

        Other claims may have an old watermark, from a time when they were the first of their master, so the highest counts.
        A master whose slots have moved there since the last micro-batch has no watermark.
        """
        owners = {slot: self._nodes.node(slot).name for slot in marks}
        large = {owners[slot] for slot in MARKED}
        small: dict[str, Watermark] = {}
        for slot, mark in marks.items():
            if owners[slot] not in large:
                small[owners[slot]] = max(mark, small.get(owners[slot], mark), key=_progress)
        return list(small.values())

    def claim(self, names: KeyNames, *arguments: Any) -> None:
        """Claim the target in one place, which decides between two routes, and then every slot."""
        given = [str(argument).encode() for argument in arguments]
        self._call_first(names, (b"EVAL", script.CLAIM.encode(), b"1", *given), key_at=3)
        self._call_all(names, (b"EVALSHA", script.CLAIM_SHA.encode(), b"1", *given), script.CLAIM, key_at=3)

    def mark(self, names: KeyNames, held: tuple[str, ...], mark: str, known: Identities | None) -> None:
        """Save the watermark at every master of ``known``, if it is the same server."""
        owners = {slot: self._nodes.node(slot).name for slot in range(REDIS_CLUSTER_HASH_SLOTS)}
        firsts = {name: slot for slot, name in reversed(owners.items())}
        calls = []
        for slot in sorted(MARKED | set(firsts.values())):
            if known is not None and owners[slot] not in known.masters:
                raise lost(f"Redis at {self._name} has a new master, {owners[slot]}")
            identity = ("", "", "") if known is None else known.masters[owners[slot]].arguments()
            claim = names.slot_claim(slot_tags()[slot])
            words = ("EVALSHA", script.MARK_SHA, "1", claim, *self.held(held), mark, *identity)
            calls.append((slot, packed([word.encode() for word in words])))
        self._nodes.exchange(calls, script.MARK)

    def load(self) -> None:
        for client in self._nodes.clients():
            client.script_load(script.WRITE_SLOTS)

    def write(self, chunk: pa.RecordBatch, names: KeyNames, first: tuple[str, ...]) -> tuple[list[Answer], int]:
        """Write the chunk by calls for each node. Rows of a slot that a node does not hold follow it, by calls for each slot."""
        from connectors.redis import protocol

        claims, nodes, held = _slot_claims(names), self._nodes.numbers(), self.held(first)
        calls = list(protocol.encode_nodes(chunk, ("EVALSHA", script.WRITE_SLOTS_SHA), claims, nodes, held))
        answers, sent = self._exchange(calls, script.WRITE_SLOTS)
        left = [rows[row] for rows, reply in answers for row in reply[3]]
        if left:
            self._nodes.forget_numbers()
            rest = chunk.take(pa.array(left, pa.int64()))
            calls = list(protocol.encode_slots(rest, ("EVALSHA", script.WRITE_SHA), claims, held))
            further, more = self._exchange(calls, script.WRITE)
            answers += [([left[row] for row in rows], reply) for rows, reply in further]
            sent += more
        return answers, sent

    def _exchange(self, calls: list[tuple[int, list[int], Command]], code: str) -> tuple[list[Answer], int]:
        replies = self._nodes.exchange([(slot, b"".join(command)) for slot, _, command in calls], code)
        answers: list[Answer] = [(rows, reply) for (_, rows, _), reply in zip(calls, replies, strict=True)]
        return answers, sum(len(part) for _, _, command in calls for part in command)

    def masters(self) -> Iterator[redis.Redis]:
        """Yield a client of each master.

        Raises:
            RetryableError: A slot moved meanwhile, so that its keys may be missed.

        """
        self._nodes.refresh()
        before = self._nodes.views()
        for node in self._nodes.masters():
            self._still(before)
            yield self._nodes.client(node)
        self._still(before)

    def _still(self, before: list[tuple[str, bool]]) -> None:
        now = self._nodes.views()
        if now != before or any(moving for _, moving in now):
            raise RetryableError("unavailable", f"{self._name}: slots moved while their keys were read")

    def split(self, names: KeyNames, keys: list[bytes]) -> list[tuple[str, list[bytes]]]:
        slots: dict[int, list[bytes]] = defaultdict(list)
        for key in keys:
            slots[key_slot(key)].append(key)
        return [(names.slot_claim(slot_tags()[slot]), found) for slot, found in slots.items()]

    def split_pairs(self, names: KeyNames, keys: list[bytes]) -> list[tuple[str, list[bytes]]]:
        """Split pairs of a value and its guard. A value whose guard would have another slot is another writer's, and is alone."""
        slots: dict[int, list[bytes]] = defaultdict(list)
        foreign = []
        for value, guard in zip(keys[::2], keys[1::2], strict=True):
            slot = key_slot(value)
            if key_slot(guard) == slot:
                slots[slot] += value, guard
            else:
                foreign.append((slot, [value]))
        return [(names.slot_claim(slot_tags()[slot]), part) for slot, part in (*slots.items(), *foreign)]

    def held(self, expected_claim: Sequence[str]) -> tuple[str, ...]:
        """Return the values without the watermark, which most claims do not have."""
        return (*expected_claim[:2], "", "", "", *expected_claim[5:])

    def close(self) -> None:
        self._nodes.close()

    def _call_first(self, names: KeyNames, words: tuple[bytes, ...], *, key_at: int = 1) -> Any:
        """Send a command for the claim that decides between two routes; the claim's key is its word at ``key_at``."""
        claim = names.claim.encode()
        (reply,) = self._nodes.exchange([(key_slot(claim), packed([*words[:key_at], claim, *words[key_at:]]))], "")
        return reply

    def _call_all(self, names: KeyNames, words: tuple[bytes, ...], code: str, *, key_at: int = 1) -> list[Any]:
        """Send a command for the claim of every slot; the claim's key is its word at ``key_at``."""
        claims = (claim.encode() for claim in map(names.slot_claim, slot_tags()))
        calls = [(slot, packed([*words[:key_at], claim, *words[key_at:]])) for slot, claim in enumerate(claims)]
        return self._nodes.exchange(calls, code)


@lru_cache(maxsize=1)
def slot_tags() -> list[str]:
    """Return for each slot a number whose text hashes to it."""
    tags: dict[int, str] = {}
    number = 0
    while len(tags) < REDIS_CLUSTER_HASH_SLOTS:
        tags.setdefault(crc_hqx(b"%d" % number, 0) % REDIS_CLUSTER_HASH_SLOTS, str(number))
        number += 1
    return [tags[slot] for slot in range(REDIS_CLUSTER_HASH_SLOTS)]


@lru_cache(maxsize=8)
def _slot_claims(names: KeyNames) -> pa.Array:
    """Return the claim of each slot as a part of a command."""
    return pa.array([bulk(names.slot_claim(tag).encode()) for tag in slot_tags()], pa.binary())


def _progress(mark: Watermark) -> tuple[int, int, int]:
    return mark.generation, mark.number, mark.version
