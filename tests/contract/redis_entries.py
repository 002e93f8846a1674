"""Read and write the JSON entries of Redis in the contract suites, on one server and on a cluster."""

from __future__ import annotations

import json

import pytest

from connectors.testing import upsert


def inner(key):
    return key.replace("{", "%7B").replace("}", "%7D")


class JsonEntries:
    """Fixtures of a contract suite. ``client`` is a client of the server or of the cluster."""

    @pytest.fixture
    def read(self, client):
        def read(route, key):
            text = client.get(f"{route.table}:{inner(key)}")
            return None if text is None else json.loads(text)

        return read

    @pytest.fixture
    def write_foreign(self, client):
        return lambda route, key: client.set(f"{route.table}:{inner(key)}", "{}")

    @pytest.fixture
    def bad_change(self, client):
        client.rpush("orders:queue", "not", "ours")
        return upsert("queue", 7, "x")
