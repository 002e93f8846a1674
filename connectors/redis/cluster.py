"""Write to a Redis Cluster: one script call for each slot, sent to its node, and a claim in each slot.

A script may use the keys of one slot alone, so ``prepare`` claims every slot, and every call checks the claim of its slot. The
claims move with their slots, and a claim without its rows, or rows without their claim, are detected. The watermark is saved
in several claims of every master, after the rows that it stands for. A promoted replica therefore has the watermark that its
rows have reached, and the target's watermark is the lowest of all masters.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from redis.cluster import ClusterNode, RedisCluster
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, TryAgainError

from connectors.change import Watermark
from connectors.errors import RetryableError, lost
from connectors.redis import script
from connectors.redis.client import Identity, identity_of, info_of, options_of, raise_first, read_reply, valid_url
from connectors.redis.settings import parse
from connectors.redis.view import as_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    import redis

    from connectors.redis.client import Answer
    from connectors.redis.keys import KeyNames
    from connectors.redis.settings import RedisSettings

ROUNDS: Final = 5
"""Times that a call follows a slot to another node. A further one is left to the retry policy."""
MARKED: Final = frozenset(range(0, REDIS_CLUSTER_HASH_SLOTS, 64))
"""Slots whose claims have the watermark, besides the first slot of each master: a new master has one after it took some."""


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
        place = parse(settings.url.get_secret_value())
        nodes = [_named(host, port) for host, port in place.servers]
        with valid_url(server):
            self._cluster = RedisCluster.from_url(place.plain, startup_nodes=nodes, **options_of(settings))
        self._name = server
        self._outdated = False

    def check(self) -> None:
        """Check that every master is reachable and lets the user run scripts."""
        for client in self._clients():
            client.ping()
            client.eval("return 1", 0)
        self._views()

    def infos(self) -> list[dict[str, Any]]:
        return [info_of(client) for client in self._clients()]

    def identity(self) -> Identities | None:
        self._refresh()
        self._views()
        found = {node.name: identity_of(info_of(self._client(node))) for node in self._masters()}
        known = {name: identity for name, identity in found.items() if identity is not None}
        return Identities(known) if len(known) == len(found) else None

    def read_claim(self, names: KeyNames) -> list[Any]:
        """Return owner, epoch and watermark; no owner if a slot has no claim: the target was emptied, at least in part."""
        owner, epoch = self._cluster.hmget(names.claim, ["owner", "epoch"])
        claims = self._call_all(names, (b"HMGET", b"owner", b"epoch", b"mark"), "")
        if owner is None or any(held is None for held, _, _ in claims):
            return [None, None, None]
        reached: dict[str, Watermark] = {}
        for slot, (*held, mark) in enumerate(claims):
            if held == [owner, epoch] and mark is not None:
                node, read = self._node(slot).name, Watermark.parse(as_bytes(mark).decode())
                reached[node] = max(read, reached.get(node, read), key=_progress)
        if len(reached) < len(self._masters()):
            return [owner, epoch, None]
        return [owner, epoch, str(min(reached.values(), key=_progress)).encode()]

    def claim(self, names: KeyNames, *arguments: Any) -> None:
        """Claim the target in one place, which decides between two routes, and then every slot."""
        self._cluster.eval(script.CLAIM, 1, names.claim, *arguments)
        given = (str(argument).encode() for argument in arguments)
        self._call_all(names, (b"EVALSHA", script.CLAIM_SHA.encode(), b"1", *given), script.CLAIM, key_at=3)

    def mark(self, names: KeyNames, held: tuple[str, ...], mark: str, known: Identities | None) -> None:
        """Save the watermark at every master of ``known``, if it is the same server."""
        owners = {slot: self._node(slot).name for slot in range(REDIS_CLUSTER_HASH_SLOTS)}
        firsts = {name: slot for slot, name in reversed(owners.items())}
        calls = []
        for slot in sorted(MARKED | set(firsts.values())):
            if known is not None and owners[slot] not in known.masters:
                raise lost(f"Redis at {self._name} has a new master, {owners[slot]}")
            identity = ("", "", "") if known is None else known.masters[owners[slot]].arguments()
            claim = names.slot_claim(slot_tags()[slot])
            words = ("EVALSHA", script.MARK_SHA, "1", claim, *self.held(held), mark, *identity)
            calls.append((slot, _packed([word.encode() for word in words])))
        self._exchange(calls, script.MARK)

    def load(self) -> None:
        for client in self._clients():
            client.script_load(script.WRITE)

    def write(self, chunk: pa.RecordBatch, names: KeyNames, first: tuple[str, ...]) -> tuple[list[Answer], int]:
        from connectors.redis import protocol

        head, claims = ("EVALSHA", script.WRITE_SHA), _slot_claims(names)
        calls = list(protocol.encode_slots(chunk, head, claims, self.held(first)))
        replies = self._exchange([(slot, command) for slot, _, command in calls], script.WRITE)
        answers: list[Answer] = [(rows, reply) for (_, rows, _), reply in zip(calls, replies, strict=True)]
        return answers, sum(len(command) for _, _, command in calls)

    def masters(self) -> Iterator[redis.Redis]:
        """Yield a client of each master.

        Raises:
            RetryableError: A slot moved meanwhile, so that its keys may be missed.

        """
        self._refresh()
        before = self._views()
        for node in self._masters():
            yield self._client(node)
        if any(moving for _, moving in before) or self._views() != before:
            raise RetryableError("unavailable", f"{self._name}: slots moved while their keys were read")

    def split(self, names: KeyNames, keys: list[bytes]) -> list[tuple[str, list[bytes]]]:
        slots: dict[int, list[bytes]] = defaultdict(list)
        for key in keys:
            slots[key_slot(key)].append(key)
        return [(names.slot_claim(slot_tags()[slot]), found) for slot, found in slots.items()]

    def held(self, expected_claim: Sequence[str]) -> tuple[str, ...]:
        """Return the values without the watermark, which most claims do not have."""
        return (*expected_claim[:2], "", "", "", *expected_claim[5:])

    def close(self) -> None:
        self._cluster.close()

    def _call_all(self, names: KeyNames, words: tuple[bytes, ...], code: str, *, key_at: int = 1) -> list[Any]:
        """Send a command for the claim of every slot; the claim's key is its word at ``key_at``."""
        claims = (claim.encode() for claim in map(names.slot_claim, slot_tags()))
        calls = [(slot, _packed([*words[:key_at], claim, *words[key_at:]])) for slot, claim in enumerate(claims)]
        return self._exchange(calls, code)

    def _exchange(self, calls: list[tuple[int, bytes]], code: str) -> list[Any]:
        """Send each call to the node of its slot and return the replies; a call that a node refuses follows its slot."""
        if self._outdated:
            self._refresh()
        replies: list[Any] = [None] * len(calls)
        asked: dict[int, ClusterNode] = {}
        left = list(range(len(calls)))
        try:
            for _ in range(ROUNDS):
                batches: dict[tuple[str, bool], list[int]] = defaultdict(list)
                nodes: dict[str, ClusterNode] = {}
                for at in left:
                    node = asked.get(at) or self._node(calls[at][0])
                    nodes[node.name] = node
                    batches[node.name, at in asked].append(at)
                self._send_all([(nodes[name], ask, ats) for (name, ask), ats in batches.items()], calls, replies)
                left = [at for at in left if isinstance(replies[at], (AskError, NoScriptError))]
                if not left:
                    raise_first(replies)
                    return replies
                asked = self._followed(left, replies, batches, nodes, code)
        except (RedisError, RetryableError):
            self._outdated = True
            raise
        raise TryAgainError("slots keep moving")

    def _send_all(
        self, batches: list[tuple[ClusterNode, bool, list[int]]], calls: list[tuple[int, bytes]], replies: list[Any]
    ) -> None:
        """Send to all nodes and then read from all, so that they work at the same time."""
        taken: list[tuple[Any, Any]] = []
        try:
            for node, ask, ats in batches:
                pool = self._client(node).connection_pool
                connection: Any = pool.get_connection()
                taken.append((pool, connection))
                before = _packed([b"ASKING"]) if ask else b""
                packed = b"".join(before + calls[at][1] for at in ats)
                connection.send_packed_command([packed], check_health=False)
            for (_, connection), (_, ask, ats) in zip(taken, batches, strict=True):
                for at in ats:
                    if ask:
                        read_reply(connection)
                    replies[at] = read_reply(connection)
        except BaseException:
            for _, connection in taken:  # unread replies may remain
                connection.disconnect()
            raise
        finally:
            for pool, connection in taken:
                pool.release(connection)

    def _followed(
        self,
        left: list[int],
        replies: list[Any],
        batches: Mapping[tuple[str, bool], list[int]],
        nodes: Mapping[str, ClusterNode],
        code: str,
    ) -> dict[int, ClusterNode]:
        """Take the new places of the calls that were refused; return the nodes that must be asked for a slot in transit."""
        asked: dict[int, ClusterNode] = {}
        for at in left:
            error = replies[at]
            if isinstance(error, MovedError):
                self._cluster.nodes_manager.move_slot(error)
            elif isinstance(error, AskError):
                known = self._cluster.nodes_manager.get_node(host=error.host, port=error.port)
                asked[at] = known or _named(error.host, error.port)
        for (name, ask), ats in batches.items():
            without = [at for at in ats if isinstance(replies[at], NoScriptError)]
            if without:
                self._client(nodes[name]).script_load(code)
                asked.update({at: nodes[name] for at in without if ask})
        return asked

    def _views(self) -> list[tuple[str, bool]]:
        """Return the slots of each master, and whether one of them is in transit; all masters must agree on the slots."""
        views: list[Any] = [client.execute_command("CLUSTER NODES") for client in self._clients()]  # type: ignore[no-untyped-call]
        slots = {
            str(sorted((node["node_id"], node["slots"]) for node in view.values() if node["slots"])) for view in views
        }
        if len(slots) != 1:
            raise RetryableError("unavailable", f"{self._name}: the nodes disagree on the masters of the slots")
        return [(next(iter(slots)), any(node["migrations"] for node in view.values())) for view in views]

    def _refresh(self) -> None:
        self._cluster.nodes_manager.initialize(disconnect_startup_nodes_pools=False)
        self._outdated = False

    def _node(self, slot: int) -> ClusterNode:
        node: ClusterNode = self._cluster.nodes_manager.slots_cache[slot][0]
        return node

    def _masters(self) -> list[ClusterNode]:
        """Return the masters that have slots."""
        return list({self._node(slot).name: self._node(slot) for slot in range(REDIS_CLUSTER_HASH_SLOTS)}.values())

    def _clients(self) -> list[redis.Redis]:
        return [self._client(node) for node in self._masters()]

    def _client(self, node: ClusterNode) -> redis.Redis:
        client: redis.Redis = self._cluster.get_redis_connection(node)
        return client


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
def _slot_claims(names: KeyNames) -> list[bytes]:
    """Return the claim of each slot as a part of a command."""
    return [_bulk(names.slot_claim(tag).encode()) for tag in slot_tags()]


def _named(host: str, port: int) -> ClusterNode:
    return ClusterNode(host, port)  # type: ignore[no-untyped-call]


def _progress(mark: Watermark) -> tuple[int, int, int]:
    return mark.generation, mark.number, mark.version


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def _packed(words: list[bytes]) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join(map(_bulk, words)))
