"""Several Redis servers that act as one: a cluster, and a master with a replica that a sentinel watches."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import redis

from deploy.local.servers import Redis, Sentinel
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SLOTS = 16_384
PASSWORD = "s3cr3t"


@dataclass(frozen=True)
class Cluster:
    """Three masters with a third of the slots each. A fourth server is a replica of the first."""

    servers: list[Redis]
    clients: list[redis.Redis]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:3])

    def migrate(self, slot: int, source: redis.Redis, target: redis.Redis, *, finish: bool = True) -> None:
        """Move a slot with its keys, as `redis-cli --cluster reshard` does."""
        ids = {client: client.execute_command("CLUSTER", "MYID") for client in (source, target)}
        target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        port = target.connection_pool.connection_kwargs["port"]
        while keys := source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)
        if finish:
            masters = [client for client in self.clients if client.info("replication")["role"] == "master"]
            for client in (target, source, *masters):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])


@contextmanager
def started_cluster() -> Iterator[Cluster]:
    with started_masters({"repl-diskless-sync-delay": "0"}, replicas=1) as cluster:
        master, replica = cluster.clients[0], cluster.clients[3]
        replica.execute_command("CLUSTER", "REPLICATE", master.execute_command("CLUSTER", "MYID"))
        until(lambda: replica.info("replication").get("master_link_status") == "up")
        _wait_until_ok(cluster.clients)
        yield cluster


@contextmanager
def started_masters(config: Mapping[str, str], *, replicas: int = 0) -> Iterator[Cluster]:
    """Start three masters, and further servers without slots for ``replicas``."""
    with ExitStack() as stack:
        given = {"cluster-enabled": "yes", "cluster-node-timeout": "15000", **config}
        servers = [stack.enter_context(Redis.start(config=given)) for _ in range(3 + replicas)]
        clients = [stack.enter_context(redis.Redis.from_url(server.url)) for server in servers]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
            if number < 3:
                slots = range(number * SLOTS // 3, (number + 1) * SLOTS // 3)
                client.execute_command("CLUSTER", "ADDSLOTS", *slots)
        until(lambda: all(len(client.execute_command("CLUSTER NODES")) == len(servers) for client in clients))
        _wait_until_ok(clients)
        yield Cluster(servers, clients)


def _wait_until_ok(clients: Sequence[redis.Redis]) -> None:
    until(lambda: all(client.execute_command("CLUSTER INFO")["cluster_state"] == "ok" for client in clients))


@dataclass(frozen=True)
class Watched:
    master: Redis
    replica: Redis
    sentinel: Sentinel

    @property
    def url(self) -> str:
        return f"redis+sentinel://:{PASSWORD}@127.0.0.1:{self.sentinel.port}/{Sentinel.service}/0"


@contextmanager
def started_with_sentinel() -> Iterator[Watched]:
    """Start a master, its replica and a sentinel, which promotes the replica a second after the master is gone."""
    config = {"requirepass": PASSWORD, "masterauth": PASSWORD, "repl-diskless-sync-delay": "0"}
    with (
        Redis.start(config=config) as master,
        Redis.start(config=config) as replica,
        redis.Redis.from_url(replica.url) as follower,
    ):
        follower.replicaof("127.0.0.1", master.port)
        until(lambda: follower.info("replication")["master_link_status"] == "up")
        with Sentinel.watching(master, PASSWORD) as sentinel, redis.Redis(port=sentinel.port) as client:
            until(lambda: _replicas(client) == [True])
            yield Watched(master, replica, sentinel)


def _replicas(sentinel: redis.Redis) -> list[bool]:
    """Return for each replica that the sentinel knows whether it can be promoted."""
    found = sentinel.sentinel_slaves(Sentinel.service)
    return [replica["flags"] == "slave" and replica["master-link-status"] == "ok" for replica in found]
