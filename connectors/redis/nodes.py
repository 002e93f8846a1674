"""Send commands that are already bytes to the nodes of a Redis Cluster, and follow slots that move."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, TryAgainError

from connectors.errors import RetryableError
from connectors.redis.client import options_of, packed, raise_first, read_reply, valid_url
from connectors.redis.settings import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    import redis

    from connectors.redis.settings import RedisSettings

ROUNDS: Final = 5
"""Times that a call follows a slot to another node. A further one is left to the retry policy."""


class Nodes:
    """The masters of a cluster and their slots, as the cluster client of redis-py knows them."""

    def __init__(self, settings: RedisSettings, server: str) -> None:
        place = parse(settings.url.get_secret_value())
        nodes = [_named(host, port) for host, port in place.servers]
        with valid_url(server):
            self.cluster = RedisCluster.from_url(place.plain, startup_nodes=nodes, **options_of(settings))
        self._name = server
        self._outdated = False
        self._numbers: np.ndarray | None = None

    def close(self) -> None:
        self.cluster.close()

    def exchange(self, calls: list[tuple[int, bytes]], code: str) -> list[Any]:
        """Send each call to the node of its slot and return the replies; a call that a node refuses follows its slot."""
        if self._outdated:
            self.refresh()
        replies: list[Any] = [None] * len(calls)
        importing: dict[int, ClusterNode] = {}
        left = list(range(len(calls)))
        try:
            for _ in range(ROUNDS):
                batches: dict[tuple[str, bool], list[int]] = defaultdict(list)
                nodes: dict[str, ClusterNode] = {}
                for at in left:
                    node = importing.get(at) or self.node(calls[at][0])
                    nodes[node.name] = node
                    batches[node.name, at in importing].append(at)
                self._send_all([(nodes[name], asking, ats) for (name, asking), ats in batches.items()], calls, replies)
                left = [at for at in left if isinstance(replies[at], (AskError, NoScriptError))]
                if not left:
                    raise_first(replies)
                    return replies
                importing = self._followed(left, replies, batches, nodes, code)
            raise TryAgainError("slots keep moving")
        except (RedisError, RetryableError):
            self._outdated = True
            raise

    def _send_all(
        self, batches: list[tuple[ClusterNode, bool, list[int]]], calls: list[tuple[int, bytes]], replies: list[Any]
    ) -> None:
        """Send to all nodes and then read from all, so that they work at the same time."""
        taken: list[tuple[Any, Any]] = []
        try:
            for node, asking, ats in batches:
                pool = self.client(node).connection_pool
                connection: Any = pool.get_connection()
                taken.append((pool, connection))
                before = packed([b"ASKING"]) if asking else b""
                together = b"".join(before + calls[at][1] for at in ats)
                connection.send_packed_command([together], check_health=False)
            for (_, connection), (_, asking, ats) in zip(taken, batches, strict=True):
                for at in ats:
                    if asking:
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
        """Take the new places of the calls that were refused; return the nodes that import the slot of a call."""
        importing: dict[int, ClusterNode] = {}
        for at in left:
            error = replies[at]
            if isinstance(error, MovedError):
                self.cluster.nodes_manager.move_slot(error)
            elif isinstance(error, AskError):
                known = self.cluster.nodes_manager.get_node(host=error.host, port=error.port)
                importing[at] = known or _named(error.host, error.port)
        for (name, asking), ats in batches.items():
            without = [at for at in ats if isinstance(replies[at], NoScriptError)]
            if without:
                self.client(nodes[name]).script_load(code)
                importing.update({at: nodes[name] for at in without if asking})
        return importing

    def views(self) -> list[tuple[str, bool]]:
        """Return the slots of each master, and whether one of them is in transit; all masters must agree on the slots."""
        views: list[Any] = [client.execute_command("CLUSTER NODES") for client in self.clients()]  # type: ignore[no-untyped-call]
        slots = {
            str(sorted((node["node_id"], node["slots"]) for node in view.values() if node["slots"])) for view in views
        }
        if len(slots) != 1:
            raise RetryableError("unavailable", f"{self._name}: the nodes disagree on the masters of the slots")
        return [(next(iter(slots)), any(node["migrations"] for node in view.values())) for view in views]

    def refresh(self) -> None:
        """Read the slots of the masters again."""
        self.cluster.nodes_manager.initialize(disconnect_startup_nodes_pools=False)
        self._outdated = False
        self.forget_numbers()

    def numbers(self) -> np.ndarray:
        """Return a number for the master of each slot."""
        if self._outdated:
            self.refresh()
        if self._numbers is None:
            known = self.cluster.nodes_manager.slots_cache
            owners = [known[slot][0].name if slot in known else "" for slot in range(REDIS_CLUSTER_HASH_SLOTS)]
            self._numbers = np.unique(owners, return_inverse=True)[1]
        return self._numbers

    def forget_numbers(self) -> None:
        """Forget the masters of the slots, some of which have moved."""
        self._numbers = None

    def node(self, slot: int) -> ClusterNode:
        """Return the master of a slot."""
        known = self.cluster.nodes_manager.slots_cache
        if slot not in known:
            raise RetryableError("unavailable", f"{self._name}: slot {slot} has no node")
        node: ClusterNode = known[slot][0]
        return node

    def masters(self) -> list[ClusterNode]:
        """Return the masters that have slots."""
        return list({self.node(slot).name: self.node(slot) for slot in range(REDIS_CLUSTER_HASH_SLOTS)}.values())

    def clients(self) -> list[redis.Redis]:
        """Return a client of each master."""
        return [self.client(node) for node in self.masters()]

    def client(self, node: ClusterNode) -> redis.Redis:
        """Return the client of a node."""
        client: redis.Redis = self.cluster.get_redis_connection(node)
        return client


def _named(host: str, port: int) -> ClusterNode:
    return ClusterNode(host, port)  # type: ignore[no-untyped-call]
